/* SPDX-License-Identifier: Apache-2.0 */
/* The config.json that is written beside converted weights: only names of classes and the degree of
 * tensor parallelism change, and all else stays byte for byte. */
#include "export_config.h"
#include "t.h"

static void becomes(const char *was, const char *want)
{
	struct shf_buf b = SHF_BUF_INIT;

	shf_config_clean(&b, was, strlen(was));
	CHECK(!b.oom);
	shf_buf_u8(&b, 0);
	CHECK_STR((const char *)b.data, want);
	shf_buf_release(&b);
}

static void stays(const char *text)
{
	becomes(text, text);
}

TEST(classes_of_pipelines_and_helpers_become_the_plain_ones)
{
	becomes("{\"architectures\": [\"Qwen2ForCausalLMPipe\"], \"n\": 1}",
	        "{\"architectures\": [\"Qwen2ForCausalLM\"], \"n\": 1}");
	becomes("{ \"architectures\":[ \"LlamaForCausalLM3DAuto\",\"QWenForCausalLMNet\" ] }",
	        "{ \"architectures\":[ \"LlamaForCausalLM\",\"QWenForCausalLM\" ] }");
	becomes("{\"architectures\":[\"Qwen3ForCausalLMPipeDeprecated\"]}",
	        "{\"architectures\":[\"Qwen3ForCausalLM\"]}");
	becomes("{\"architectures\":[\"Qwen\\u0032ForCausalLMPipe\"]}\n",
	        "{\"architectures\":[\"Qwen2ForCausalLM\"]}\n");
	becomes("{\"tensor_parallel_degree\": 8,\n \"x\": 8}",
	        "{\"tensor_parallel_degree\": 1,\n \"x\": 8}");
}

TEST(all_else_stays)
{
	stays("{\"architectures\":[\"Qwen2ForCausalLM\"]}");
	stays("{\"architectures\":[\"ResNet\", \"ModifiedResNet\", \"ForNet\", \"AForNet\", "
	      "\"Pipe\", \"EmbeddingPipe\", \"\", 3, null, [\"AForBPipe\"], "
	      "{\"a\":\"AForBPipe\"}]}");
	stays("{\"a\":{\"architectures\":[\"Qwen2ForCausalLMPipe\"],"
	      "\"tensor_parallel_degree\":2},\"b\":[\"Qwen2ForCausalLMPipe\"]}");
	stays("{\"tensor_parallel_degree\":1,\"x\":1e-05}");
	stays("{\"tensor_parallel_degree\":-1,\"tensor_parallel_degree\":2.5}");
	stays("{\"tensor_parallel_degree\":[8]}");
	stays("[\"Qwen2ForCausalLMPipe\"]");
	stays("");
	stays("{\"architectures\":[\"Qwen2ForCausalLMPipe\"], ");
	stays("{\"architectures\":[\"Qwen2ForCausalLMPipe\"]} x");
	stays(" \t{ }\r\n");
}
