/* SPDX-License-Identifier: Apache-2.0 */
/* Data that changes in flight: one deed at one random moment of a save or a load of four ranks, on
 * one, two or four nodes. A save must then load correctly or be refused; a load must be correct or
 * refused. */
#ifndef HARMFLIGHT_H
#define HARMFLIGHT_H
#include <stdbool.h>
#include <stdint.h>

enum harm_deed {
	HARM_IMAGE,                     /* flips a bit of a staging buffer */
	HARM_IMAGE_SWAP,                /* exchanges two ranges of staging buffers */
	HARM_MESSAGE,                   /* flips a bit of data received from other nodes */
	HARM_MESSAGE_SWAP,              /* exchanges the data received from two ranks */
	HARM_MESSAGE_SHIFT,             /* exchanges two ranges of the received data */
	HARM_MESSAGE_LOST,              /* overwrites a rank's data with zeros */
	HARM_DISK,                      /* flips a bit that is written, or was just read */
	HARM_TOLD,                      /* flips a bit of metadata that is sent to ranks */
	HARM_TABLE,                     /* flips a bit in the checksum table of an open step */
	HARM_DEEDS
};
struct harm_flights {
	uint64_t tried, fired;          /* fired: such a moment existed */
	uint64_t refused;               /* by the save or load itself */
	uint64_t found;                 /* saves: by the load or verify that followed */
	uint64_t harmless;              /* the result was right */
	uint64_t wrong;                 /* loads with wrong values */
	uint64_t by[HARM_DEEDS];        /* fired, by deed */
};
/* Runs deed number n of the seed. Returns "", or what is wrong and what was done. */
const char *harm_flight(struct harm_flights *f, uint64_t seed, uint64_t n, char why[900]);
const char *harm_deed_name(int deed);
/* Frees what is kept between flights. */
void harm_flights_end(void);
#endif
