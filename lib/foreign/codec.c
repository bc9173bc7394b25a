/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that includes the headers of compression libraries. SHF_HAVE_ZLIB, SHF_HAVE_ZSTD
 * and SHF_HAVE_BLOSC are set by meson.build. blosc is called by its functions with a context, which
 * use neither globals nor threads nor the environment. */
#include "codec.h"
#include "mem.h"
#ifdef SHF_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef SHF_HAVE_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif
#ifdef SHF_HAVE_BLOSC
#include <blosc.h>
#endif

#define ZSTD_WINDOW_LOG 27      /* a frame that needs a larger window is refused: libzstd's own
                                 * default */

struct shf_codec_state {
	enum shf_codec codec;
#ifdef SHF_HAVE_ZLIB
	z_stream z;
#endif
#ifdef SHF_HAVE_ZSTD
	ZSTD_DStream *zstd;             /* owned */
#endif
};

const char *shf_codec_name(enum shf_codec codec)
{
	static const char *const names[] = { "uncompressed", "deflate", "zlib", "gzip", "zstd",
	                                     "blosc" };

	return names[codec];
}

bool shf_codec_is_built(enum shf_codec codec)
{
	bool built = codec == SHF_CODEC_NONE;

#ifdef SHF_HAVE_ZLIB
	built |= codec == SHF_CODEC_DEFLATE || codec == SHF_CODEC_ZLIB || codec == SHF_CODEC_GZIP;
#endif
#ifdef SHF_HAVE_ZSTD
	built |= codec == SHF_CODEC_ZSTD;
#endif
#ifdef SHF_HAVE_BLOSC
	built |= codec == SHF_CODEC_BLOSC;
#endif
	return built;
}

#ifdef SHF_HAVE_ZLIB
static void *z_alloc(void *arg, unsigned n, unsigned size)
{
	(void)arg;
	return shf_alloc(n, size);
}

static void z_free(void *arg, void *p)
{
	(void)arg;
	shf_free(p);
}

static bool zlib_begin(struct shf_codec_state *c)
{
	int bits = c->codec == SHF_CODEC_DEFLATE ? -15 : c->codec == SHF_CODEC_ZLIB ? 15 : 31;

	c->z.zalloc = z_alloc;
	c->z.zfree = z_free;
	return inflateInit2(&c->z, bits) == Z_OK;
}

static bool zlib_more(struct shf_codec_state *c, struct shf_codec_step *s, const char **why)
{
	const size_t most = 1u << 30;
	unsigned in_n = (unsigned)(s->in_n < most ? s->in_n : most);
	unsigned out_n = (unsigned)(s->out_n < most ? s->out_n : most);
	int rc;

	c->z.next_in = (z_const Bytef *)(uintptr_t)s->in;
	c->z.next_out = s->out;
	c->z.avail_in = in_n;
	c->z.avail_out = out_n;
	rc = inflate(&c->z, Z_NO_FLUSH);
	s->in += in_n - c->z.avail_in;
	s->in_n -= in_n - c->z.avail_in;
	s->out += out_n - c->z.avail_out;
	s->out_n -= out_n - c->z.avail_out;
	s->ended = rc == Z_STREAM_END;
	s->oom = rc == Z_MEM_ERROR;
	*why = c->z.msg ? c->z.msg : "need a dictionary";
	return rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR;
}
#endif

#ifdef SHF_HAVE_ZSTD
static bool zstd_begin(struct shf_codec_state *c)
{
	c->zstd = ZSTD_createDStream();
	return c->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(c->zstd, ZSTD_d_windowLogMax,
	                                                       ZSTD_WINDOW_LOG));
}

static bool zstd_more(struct shf_codec_state *c, struct shf_codec_step *s, const char **why)
{
	ZSTD_inBuffer in = { s->in, s->in_n, 0 };
	ZSTD_outBuffer out = { s->out, s->out_n, 0 };
	size_t rc = ZSTD_decompressStream(c->zstd, &out, &in);

	s->in += in.pos;
	s->in_n -= in.pos;
	s->out += out.pos;
	s->out_n -= out.pos;
	s->ended = rc == 0;
	s->oom = ZSTD_getErrorCode(rc) == ZSTD_error_memory_allocation;
	*why = ZSTD_getErrorName(rc);
	return !ZSTD_isError(rc);
}
#endif

struct shf_codec_state *shf_codec_begin(enum shf_codec codec)
{
	struct shf_codec_state *c = shf_zalloc(1, sizeof(*c));
	bool begun = false;

	if (!c)
		return NULL;
	c->codec = codec;
#ifdef SHF_HAVE_ZLIB
	if (codec == SHF_CODEC_DEFLATE || codec == SHF_CODEC_ZLIB || codec == SHF_CODEC_GZIP)
		begun = zlib_begin(c);
#endif
#ifdef SHF_HAVE_ZSTD
	if (codec == SHF_CODEC_ZSTD)
		begun = zstd_begin(c);
#endif
	if (begun)
		return c;
	shf_codec_end(c);
	return NULL;
}

void shf_codec_end(struct shf_codec_state *c)
{
	if (!c)
		return;
#ifdef SHF_HAVE_ZLIB
	if (c->codec != SHF_CODEC_ZSTD)
		inflateEnd(&c->z);
#endif
#ifdef SHF_HAVE_ZSTD
	ZSTD_freeDStream(c->zstd);
#endif
	shf_free(c);
}

bool shf_codec_more(struct shf_codec_state *c, struct shf_codec_step *s, const char **why)
{
#ifdef SHF_HAVE_ZSTD
	if (c->codec == SHF_CODEC_ZSTD)
		return zstd_more(c, s, why);
#endif
#ifdef SHF_HAVE_ZLIB
	if (c->codec != SHF_CODEC_ZSTD)
		return zlib_more(c, s, why);
#endif
	(void)s;
	*why = "nothing decodes it";
	return c->codec == SHF_CODEC_NONE;
}

bool shf_codec_blosc(const uint8_t *in, size_t n, uint8_t *out, size_t out_n)
{
#ifdef SHF_HAVE_BLOSC
	size_t holds = 0;

	return blosc_cbuffer_validate(in, n, &holds) == 0 && holds == out_n &&
	       blosc_decompress_ctx(in, out, out_n, 1) == (int)out_n;
#else
	(void)in;
	(void)out;
	return n == 0 && out_n == 0;
#endif
}
