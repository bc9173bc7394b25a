/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that change while they are under way: one evil deed at one drawn moment of a save or a load
 * of four ranks, on one node, on two, on four. What was saved then loads right or is refused; what
 * is loaded is right or refused. */
#ifndef HARMFLIGHT_H
#define HARMFLIGHT_H
#include <stdbool.h>
#include <stdint.h>

enum harm_deed {
	HARM_IMAGE,                     /* a bit of an image */
	HARM_IMAGE_SWAP,                /* two stretches of images change places */
	HARM_MESSAGE,                   /* a bit of what came from other nodes */
	HARM_MESSAGE_SWAP,              /* what came from two ranks, in each other's place */
	HARM_MESSAGE_SHIFT,             /* a stretch of it in another's place */
	HARM_MESSAGE_LOST,              /* what came from a rank is zeros */
	HARM_DISK,                      /* a bit of what is being written, or was just read */
	HARM_TOLD,                      /* a bit of manifest, sums or headers as ranks are told */
	HARM_TABLE,                     /* a bit of the table of sums of an open step */
	HARM_DEEDS
};
struct harm_flights {
	uint64_t tried, fired;          /* fired: there was such a moment */
	uint64_t refused;               /* by the save or load itself */
	uint64_t found;                 /* saves: by the load that followed */
	uint64_t harmless;              /* all was right in the end */
	uint64_t wrong;                 /* restores that were not */
	uint64_t by[HARM_DEEDS];        /* fired, of each */
};
/* Deed number n of the seed. "" or what is wrong, with what was done. */
const char *harm_flight(struct harm_flights *f, uint64_t seed, uint64_t n, char why[900]);
const char *harm_deed_name(int deed);
/* Frees what is kept between flights. */
void harm_flights_end(void);
#endif
