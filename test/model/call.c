/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include <inttypes.h>
#include "sheaf.h"

const char *const call_names[CALL_KINDS] = {
	"open",        "close",       "kill",       "begin",    "gate",       "put",
	"commit",      "wait",        "advance",   "fail",     "free",       "attach",
	"note",        "move",        "average",    "load",     "resume",     "hold",
	"load-held",   "drop",        "rewind",     "mark",     "prune",      "fork",
	"child-close", "child-exit",  "cli-rewind", "cli-mark", "cli-prune",  "cli-copy",
	"agent-flush", "cli-salvage", "cp",         "rename",   "agent-kill", "agent-limit",
	"clock",       "fault",
};

static void print_open(const struct call *c, FILE *out)
{
	static const char *const layouts[LAYOUTS] = { "rows", "whole", "flat", "backwards",
						      "columns" };

	fprintf(out, "job%d = open(run%d%s%s, ranks=%d, nodes=%d, layout=%s", c->job, c->run,
		c->flags & SHEAF_RUN_READONLY ? ", readonly" : "", c->agent ? ", agent" : "", c->n,
		c->nodes, layouts[c->layout]);
	if (c->images)
		fprintf(out, ", images_max=%d", c->images);
	if (c->keep)
		fprintf(out, ", keep_last=%d", c->keep);
	if (c->attempts)
		fprintf(out, ", resume_attempts_max=%d", c->attempts);
	fprintf(out, "%s%s%s%s%s)\n", c->variant & V_PART ? ", weights alone" : "",
		c->variant & V_TIED ? ", tied" : "", c->variant & V_DOUBLED ? ", doubled" : "",
		c->variant & V_IN_PLACE ? ", in place" : "",
		c->variant & V_AVERAGE ? ", average" : "");
}

static void print_begin(const struct call *c, FILE *out)
{
	fprintf(
	    out, "job%d.save%d = begin(step=%" PRId64 ", values=%d%s%s%s%s%s)\n", c->job, c->slot,
	    c->step, c->id, c->flags & SHEAF_SAVE_LAZY ? ", lazy" : "",
	    c->flags & SHEAF_SAVE_NO_DISK ? ", no disk" : "", c->flags & SHEAF_SAVE_LATER ?
	            ", later" : "",
	    c->flags & SHEAF_SAVE_MAY_DROP ? ", may drop" : "",
	    c->flags & SHEAF_SAVE_CHECK ? ", check" : "");
}

void call_print(const struct call *c, FILE *out)
{
	const char *name = call_names[c->kind];

	switch (c->kind) {
	case C_OPEN:
		print_open(c, out);
		break;
	case C_BEGIN:
		print_begin(c, out);
		break;
	case C_GATE:
	case C_PUT:
	case C_COMMIT:
	case C_WAIT:
	case C_NOTE:
	case C_ATTACH:
		fprintf(out, "job%d.save%d.%s(%d, %d ms)\n", c->job, c->slot, name, c->n, c->to);
		break;
	case C_ADVANCE:
	case C_FAIL:
	case C_FREE:
		fprintf(out, "job%d.save%d.%s()\n", c->job, c->slot, name);
		break;
	case C_LOAD:
	case C_RESUME:
	case C_HOLD:
	case C_LOAD_HELD:
	case C_DROP:
	case C_REWIND:
	case C_MARK:
		fprintf(out, "job%d.%s(step=%" PRId64 ", %d)\n", c->job, name, c->step,
			c->kind == C_MARK ? c->n : c->slot);
		break;
	case C_RUN_REWIND:
	case C_RUN_MARK:
	case C_RUN_PRUNE:
	case C_COPY:
	case C_CP:
	case C_RENAME:
	case C_FLUSH:
	case C_SALVAGE:
		fprintf(out, "%s(run%d, step=%" PRId64 ", %d, run%d)\n", name, c->run, c->step,
			c->n, c->to);
		break;
	case C_AGENT_KILL:
	case C_AGENT_LIMIT:
	case C_CLOCK:
	case C_FAULT:
		fprintf(out, "%s(%d, %d)\n", name, c->n, c->to);
		break;
	case C_AVERAGE:
		fprintf(out, "job%d.%s(step=%" PRId64 ", values=%d)\n", c->job, name, c->step,
			c->id);
		break;
	default:
		fprintf(out, "job%d.%s(%d)\n", c->job, name, c->n);
		break;
	}
}
