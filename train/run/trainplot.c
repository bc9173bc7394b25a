/* SPDX-License-Identifier: Apache-2.0 */
/* The picture has a panel for each kind of number, one below the other, with one axis of steps for
 * all. A panel keeps its scale as data-x and data-y, so that a program can read numbers back. */
#include "trainplot.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "runevents.h"
#include "trainevents.h"

enum { WIDE = 840, LEFT = 76, RIGHT = 24, TOP = 34, LEGEND_ROW = 18, PANEL = 130, LOSS_PANEL = 230,
       GAP = 46, BOTTOM = 46, LABEL_WIDE = 150, DOTS_MAX = 80 };
#define INK "#222222"
#define FAINT "#dddddd"

struct panel {
	const char *title, *name;
	enum tr_curve curve[2];
	int curves;
	int from_zero;                  /* the axis begins with 0 */
	int tall;
};
static const struct panel panels[] = {
	{ "loss (line: training; dots: evaluation)", "loss", { TR_CURVE_LOSS, TR_CURVE_EVAL }, 2, 0,
	  LOSS_PANEL },
	{ "norm of the gradient", "norm", { TR_CURVE_NORM }, 1, 1, PANEL },
	{ "learning rate", "rate", { TR_CURVE_RATE }, 1, 1, PANEL },
	{ "tokens per second", "speed", { TR_CURVE_SPEED }, 1, 1, PANEL },
	{ "stall: time in a step that saves blocked, ms", "stall", { TR_CURVE_STALL }, 1, 1,
	  PANEL },
};
enum { PANELS = sizeof(panels) / sizeof(panels[0]) };
static const char *const curve_name[TR_CURVES] = { "loss", "eval", "norm", "rate", "speed",
						   "stall" };
static const char *const color[TR_PLOT_RUNS_MAX] = { "#1b6ca8", "#d1495b", "#2e8b57", "#b8860b",
						     "#7b3fa0", "#008b8b", "#8b4513", "#555555" };

struct range {
	double low, high;
};
/* The scale of an axis: `value` is drawn on the pixels `pixel`, linearly. */
struct axis {
	struct range value, pixel;
};
struct picture {
	FILE *to;
	const char *const *name;
	const struct tr_runevents *run;
	int n;
	struct axis x;
};

static double place(const struct axis *a, double v)
{
	return a->pixel.low + (v - a->value.low) / (a->value.high - a->value.low) *
		(a->pixel.high - a->pixel.low);
}

static void extend(struct range *r, double v)
{
	r->low = v < r->low ? v : r->low;
	r->high = v > r->high ? v : r->high;
}

/* Returns the distance of ticks: 1, 2 or 5 times a power of ten, so that there are at most
 * `most`. */
static double tick_distance(struct range r, int most)
{
	double least = (r.high - r.low) / most, unit = pow(10, floor(log10(least)));

	return least <= unit ? unit : least <= 2 * unit ? 2 * unit : least <= 5 * unit ? 5 * unit :
		10 * unit;
}

/* Returns the range from tick to tick around r, which may be a single value. */
static struct range round_range(struct range r, int most)
{
	double by, room = fmax(fabs(r.low) * 1e-3, DBL_MIN * 1e9);

	if (!(r.high - r.low > room * 1e-6)) {
		r.low = r.low == 0 ? 0 : r.low - room;
		r.high = r.high == 0 ? 1 : r.high + room;
	}
	by = tick_distance(r, most);
	return (struct range){ floor(r.low / by) * by, ceil(r.high / by) * by };
}

/* Writes text with the characters that XML reserves as entities, and control characters as ?. */
static void put_text(FILE *to, const char *text)
{
	json_t *valid = json_string(text);      /* NULL if it is not UTF-8 */

	for (const char *c = text; *c; c++) {
		int plain = (unsigned char)*c >= ' ' && *c != 0x7f &&
			(valid || (unsigned char)*c < 0x80);

		if (*c == '<')
			fputs("&lt;", to);
		else if (*c == '>')
			fputs("&gt;", to);
		else if (*c == '&')
			fputs("&amp;", to);
		else if (*c == '"')
			fputs("&quot;", to);
		else
			fputc(plain ? *c : '?', to);
	}
	json_decref(valid);
}

static void put_number(FILE *to, double x, double y, const char *anchor, double v)
{
	fprintf(to, fabs(v) >= 1e5 && fabs(v) < 1e15 ?
		"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%.0f</text>\n" :
		"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%.6g</text>\n", x, y, anchor, v);
}

static void put_rule(FILE *to, double x1, double y1, double x2, double y2, const char *stroke)
{
	fprintf(to, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1,
		y1, x2, y2, stroke);
}

/* ---- the lines of a panel ---- */

/* Draws a curve without gaps. If it has more than two points for each column of pixels, only the
 * lowest and the highest point of each column are drawn. */
static void put_points(FILE *to, const struct tr_point *at, size_t n, const struct axis *x,
		       const struct axis *y)
{
	for (size_t i = 0, next; i < n; i = next) {
		double column = floor(place(x, at[i].x));
		size_t low = i, high = i, first, second;

		for (next = i + 1; n > 2 * WIDE && next < n &&
		     floor(place(x, at[next].x)) <= column; next++) {
			low = at[next].y < at[low].y ? next : low;
			high = at[next].y > at[high].y ? next : high;
		}
		first = low < high ? low : high;
		second = low < high ? high : low;
		fprintf(to, "%.2f,%.2f ", place(x, at[first].x), place(y, at[first].y));
		if (second != first)
			fprintf(to, "%.2f,%.2f ", place(x, at[second].x), place(y, at[second].y));
	}
}

static void put_dots(FILE *to, const struct tr_point *at, size_t n, const struct axis *x,
		     const struct axis *y, const char *fill)
{
	for (size_t i = 0; n <= DOTS_MAX && i < n; i++)
		fprintf(to, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"3\" fill=\"%s\" "
			"stroke=\"#ffffff\"><title>step %.0f: %.6g</title></circle>\n",
			place(x, at[i].x), place(y, at[i].y), fill, at[i].x, at[i].y);
}

static void put_curve(const struct picture *p, int run, enum tr_curve curve, const struct axis *y)
{
	const struct tr_points *points = &p->run[run].curve[curve];

	for (size_t i = 0, end; i < points->n; i = end + 1) {
		for (end = i; end < points->n && !isnan(points->at[end].y);)
			end++;
		if (end == i)
			continue;
		fprintf(p->to, "<polyline class=\"%s\" data-run=\"%d\" fill=\"none\" stroke=\"%s\" "
			"stroke-width=\"1.4\"%s points=\"", curve_name[curve], run, color[run],
			curve == TR_CURVE_EVAL ? " stroke-dasharray=\"5 3\"" : "");
		put_points(p->to, points->at + i, end - i, &p->x, y);
		fputs("\"/>\n", p->to);
		if (curve == TR_CURVE_EVAL || end - i == 1)
			put_dots(p->to, points->at + i, end - i, &p->x, y, color[run]);
	}
}

/* ---- a panel ---- */

static struct range values_of(const struct picture *p, const struct panel *panel)
{
	struct range r = { INFINITY, -INFINITY };

	if (panel->from_zero)
		r = (struct range){ 0, 0 };
	for (int run = 0; run < p->n; run++) {
		for (int c = 0; c < panel->curves; c++) {
			const struct tr_points *points = &p->run[run].curve[panel->curve[c]];

			for (size_t i = 0; i < points->n; i++)
				if (!isnan(points->at[i].y))
					extend(&r, points->at[i].y);
		}
	}
	return r;
}

static void put_ticks(const struct picture *p, const struct axis *y, double bottom)
{
	double by = tick_distance(y->value, 6);

	for (double i = 0; y->value.low + i * by <= y->value.high + by / 2; i++) {
		double v = y->value.low + i * by;

		v = fabs(v) < by * 1e-6 ? 0 : v;
		put_rule(p->to, LEFT, place(y, v), WIDE - RIGHT, place(y, v), FAINT);
		put_number(p->to, LEFT - 6, place(y, v) + 4, "end", v);
	}
	by = fmax(tick_distance(p->x.value, 10), 1);
	for (double v = ceil(p->x.value.low / by) * by; v <= p->x.value.high; v += by) {
		put_rule(p->to, place(&p->x, v), bottom, place(&p->x, v), bottom + 4, INK);
		put_number(p->to, place(&p->x, v), bottom + 17, "middle", v);
	}
}

static void put_resumption(const struct picture *p, int run, const struct tr_resumption *r,
			   double top, double bottom)
{
	double x = place(&p->x, (double)r->step);

	fprintf(p->to, "<line class=\"resumed\" data-run=\"%d\" data-step=\"%" PRId64 "\" "
		"x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\" stroke=\"%s\" "
		"stroke-dasharray=\"2 3\"><title>resumed from step %" PRId64 " by %" PRId64
		" ranks: dp=%" PRId64 ", tp=%" PRId64 ", pp=%" PRId64 "</title></line>\n", run,
		r->step, x, top, x, bottom, color[run], r->step, r->ranks, r->dp, r->tp, r->pp);
}

/* Draws a line at each step from which a job resumed.
 * words  1: with the step and mesh beside each line, where there is room for them */
static void put_resumptions(const struct picture *p, double top, double bottom, int words)
{
	double free_from = 0;

	for (int run = 0; run < p->n; run++) {
		for (size_t i = 0; i < p->run[run].resumed_n; i++) {
			const struct tr_resumption *r = &p->run[run].resumed[i];
			double x = place(&p->x, (double)r->step);
			int left = x + LABEL_WIDE > WIDE - RIGHT;

			put_resumption(p, run, r, top, bottom);
			if (!words || (left ? x - LABEL_WIDE : x) < free_from)
				continue;
			fprintf(p->to, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\" "
				"font-size=\"11\">%" PRId64 ": dp=%" PRId64 ", tp=%" PRId64
				", pp=%" PRId64 "</text>\n", x + (left ? -4 : 4), top + 12,
				left ? "end" : "start", color[run], r->step, r->dp, r->tp, r->pp);
			free_from = left ? x : x + LABEL_WIDE;
		}
	}
}

static void put_panel(const struct picture *p, const struct panel *panel, double top)
{
	struct axis y = { round_range(values_of(p, panel), 6), { top + panel->tall, top } };

	fprintf(p->to, "<g class=\"panel\" id=\"%s\" data-x=\"%.17g %.17g %.17g %.17g\" "
		"data-y=\"%.17g %.17g %.17g %.17g\">\n", panel->name, p->x.value.low,
		p->x.value.high, p->x.pixel.low, p->x.pixel.high, y.value.low, y.value.high,
		y.pixel.low, y.pixel.high);
	fprintf(p->to, "<text x=\"%d\" y=\"%.1f\" font-weight=\"bold\">%s</text>\n", LEFT, top - 8,
		panel->title);
	put_ticks(p, &y, top + panel->tall);
	put_resumptions(p, top, top + panel->tall, panel == panels);
	for (int run = 0; run < p->n; run++)
		for (int c = 0; c < panel->curves; c++)
			put_curve(p, run, panel->curve[c], &y);
	fputs("</g>\n", p->to);
}

/* ---- the picture ---- */

static struct range steps_of(const struct picture *p)
{
	struct range r = { INFINITY, -INFINITY };

	for (int run = 0; run < p->n; run++) {
		/* An evaluation may be of a step whose event is missing. */
		for (int c = 0; c < TR_CURVES; c++)
			for (size_t i = 0; i < p->run[run].curve[c].n; i++)
				extend(&r, p->run[run].curve[c].at[i].x);
		for (size_t i = 0; i < p->run[run].resumed_n; i++)
			extend(&r, (double)p->run[run].resumed[i].step);
	}
	if (r.low == r.high)
		r.low--;
	return r;
}

static void put_picture(struct picture *p)
{
	double y = TOP + LEGEND_ROW * p->n;
	int tall = (int)y + BOTTOM - GAP;

	for (int i = 0; i < PANELS; i++)
		tall += panels[i].tall + GAP;
	fprintf(p->to, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
		"viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\" "
		"fill=\"" INK "\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
		WIDE, tall, WIDE, tall);
	for (int run = 0; run < p->n; run++) {
		double at = LEGEND_ROW * (run + 1);

		fprintf(p->to, "<rect x=\"%d\" y=\"%.1f\" width=\"14\" height=\"4\" "
			"fill=\"%s\"/><text class=\"run\" x=\"%d\" y=\"%.1f\">", LEFT, at - 6,
			color[run], LEFT + 20, at);
		put_text(p->to, p->name[run]);
		fputs("</text>\n", p->to);
	}
	for (int i = 0; i < PANELS; i++) {
		put_panel(p, &panels[i], y);
		y += panels[i].tall + GAP;
	}
	fprintf(p->to, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"middle\">step</text>\n</svg>\n",
		(LEFT + WIDE - RIGHT) / 2, y - GAP + 34);
}

static int read_run(struct tr_runevents *r, const char *run, struct tr_error *err)
{
	char path[4200];
	struct stat st;
	int rc;

	if (stat(run, &st) < 0)
		return tr_fail(err, errno == ENOENT ? TR_ENOENT : TR_EIO, "%s: %s", run,
			       strerror(errno));
	if (!S_ISDIR(st.st_mode))
		snprintf(path, sizeof(path), "%s", run);
	else if (snprintf(path, sizeof(path), "%s/%s", run, TR_EVENTS_NAME) >= (int)sizeof(path))
		return tr_fail(err, TR_EINVAL, "%.60s...: the path is too long; use a shorter one",
			       run);
	rc = tr_runevents_read(r, path, err);
	if (rc == TR_ENOENT)
		rc = tr_fail(err, rc, "%s: it does not exist; if the run was trained with --events "
			     "FILE, plot that file", path);
	if (rc == 0 && r->odd_lines)
		fprintf(stderr, "sheaf-train: %s: lines that are no events are left out: %"
			PRId64 "\n", path, r->odd_lines);
	return rc;
}

int tr_plot(const char *const *run, int n, FILE *to, struct tr_error *err)
{
	struct tr_runevents r[TR_PLOT_RUNS_MAX] = { { .resumed = NULL } };
	struct picture p = { .to = to, .name = run, .run = r, .n = n };
	int rc = 0;

	for (int i = 0; rc == 0 && i < n; i++)
		rc = read_run(&r[i], run[i], err);
	if (rc == 0) {
		p.x = (struct axis){ steps_of(&p), { LEFT, WIDE - RIGHT } };
		put_picture(&p);
	}
	for (int i = 0; i < n; i++)
		tr_runevents_release(&r[i]);
	return rc;
}
