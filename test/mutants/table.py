# SPDX-License-Identifier: Apache-2.0
"""The planted bugs: where, what becomes of it, and who must notice.

In what is put there the word MUTANT is true while the bug is awake. Places are found by their
words, whatever the white space, inside the function named; there must be one. Tests are "program:
claim", the program by its name under test/, the claim as its filter takes it; each must turn red.
"""
import collections

Mutant = collections.namedtuple("Mutant", "name what file function find put tests")
MUTANTS = []


TRAIN = ("num/", "comm/", "data/", "model/", "optim/", "task/", "run/bind", "run/train",
         "run/offload.c")


def place_of(name):
    """Where a file of the table lies: lib/ and train/ are left out of the names."""
    if name.startswith("mpi/"):
        return name
    return ("train/" if name.startswith(TRAIN) else "lib/") + name


def bug(name, what, where, find, put, *tests):
    file, _, function = where.partition(":")
    MUTANTS.append(Mutant(name, what, file, function, find, put, tests))


def skipped(name, what, where, call, *tests):
    """A call that gives a code: not made, and said to have worked."""
    bug(name, what, where, call, "(MUTANT ? 0 : " + call + ")", *tests)


def blind(name, what, where, condition, *tests):
    """A condition of trouble that is never seen."""
    bug(name, what, where, condition, "(!MUTANT && (%s))" % condition, *tests)


def gullible(name, what, where, condition, *tests):
    """A condition under which all is well, that always holds."""
    bug(name, what, where, condition, "(MUTANT || (%s))" % condition, *tests)


COMMIT, CUTS, STORE, PRUNE, OPS = ("sim/test_commit: ", "sim/test_cuts: ", "unit/test_store: ",
                                   "unit/test_prune: ", "sim/test_run_ops: ")
CUT = "_survives_every_cut_strict"

# ---- what is durable before what ----
skipped("folder_not_synced", "the names in a family's folder are not synced (I2)",
        "store/publish.c:check_folder", "shf_dir_sync(c->s, fd)", COMMIT + "next_save" + CUT)
skipped("stage_not_synced", "the stage is not synced before the manifest (I2)",
        "store/publish.c:stage_check_and_sync", "shf_dir_sync(c->s, c->g->dir)",
        COMMIT + "next_save" + CUT)
skipped("manifest_not_synced", "the bytes of the manifest are not synced",
        "store/publish.c:write_manifest", "shf_sys_fsync(sys, fd)",
        COMMIT + "next_save" + CUT)
skipped("manifest_name_not_synced", "the stage is not synced after the manifest (I3)",
        "store/publish.c:write_manifest", "shf_dir_sync(c->s, dir)", COMMIT + "next_save" + CUT)
skipped("run_not_synced", "the run is not synced after the rename (C9)",
        "store/publish.c:sync_parents", "shf_dir_sync(s, s->dir)", COMMIT + "next_save" + CUT)
skipped("stages_not_synced", "the folder of the stages is not synced after the rename (C9)",
        "store/publish.c:sync_parents", "shf_dir_sync(s, s->stage)", COMMIT + "next_save" + CUT)
skipped("names_not_synced_at_open", "what a dead job renamed is not synced by who builds on it",
        "store/store.c:sync_names", "shf_dir_sync(s, s->dir)",
        COMMIT + "a_step_seen_at_open_is_durable")
skipped("mark_not_synced", "the name of a mark is not synced", "store/marks.c:shf_store_mark",
        "shf_dir_sync(s, dir)", COMMIT + "mark" + CUT)
skipped("trash_not_synced", "steps in the trash are deleted before the run is synced (P3)",
        "store/prune_steps.c:shf_trash_empty", "shf_dir_sync(s, s->dir)", COMMIT + "prune" + CUT)
skipped("aside_not_synced", "the folder of what is set aside is not synced",
        "store/aside.c:move_aside", "shf_dir_sync(s, aside)", COMMIT + "rewind_alone" + CUT)
skipped("rewind_not_synced", "the run is not synced after a step was set aside",
        "store/aside.c:move_aside", "shf_dir_sync(s, s->dir)", COMMIT + "rewind_alone" + CUT)
bug("text_not_synced", "journals, marks and identities are renamed into place unsynced",
    "store/run_files.c:shf_text_put", "shf_sys_fsync(sys, fd)",
    "MUTANT ? 0 : shf_sys_fsync(sys, fd)", COMMIT + "rewind_alone" + CUT)
gullible("data_not_synced", "no writer syncs what it wrote (C3)",
         "save/save_sync.c:fsync_submit",
         "save->disk.fds[f] < 0", CUTS + "next_save" + CUT)
bug("smalls_not_synced", "index, sums and attached files are not synced (C5)",
    "run/small_files.c:shf_small_files_sync", "i < smalls->n && rc == 0;",
    "!MUTANT && i < smalls->n && rc == 0;", CUTS + "next_save" + CUT)

# ---- the commit and its agreements ----
skipped("sizes_not_checked", "names and sizes in the stage are not compared with what was said",
        "store/publish.c:shf_stage_publish", "stage_check_and_sync(&c)",
        STORE + "a_stage_that_is_not_as_its_writers_say_is_not_published")
bug("failed_fsync_asked_again", "a failed fsync of the manifest is tried once more and believed",
    "store/publish.c:write_manifest", "closed = shf_sys_close(sys, fd);",
    "if (MUTANT && put >= 0 && rc < 0) rc = shf_sys_fsync(sys, fd);"
    " closed = shf_sys_close(sys, fd);", COMMIT + "each_call_of_a_save_may_fail")
skipped("lock_not_read_again", "a job whose lock was taken publishes all the same (C7)",
        "store/publish.c:publish_with_manifest", "shf_lock_check(c->s, c->err)",
        COMMIT + "a_stolen_lock_ends_the_save_before_the_rename")
bug("rename_may_replace", "the publish replaces an empty directory (I6)",
    "store/publish.c:rename_stage", "s->dir, t, true)", "s->dir, t, !MUTANT)",
    COMMIT + "a_target_that_appears_is_never_replaced")
bug("target_not_looked_at", "a rename that says it failed is believed",
    "store/publish.c:rename_stage", "ours = target_is_ours(s, t, text);",
    "ours = MUTANT ? 0 : target_is_ours(s, t, text);",
    COMMIT + "a_publish_that_is_done_and_said_to_fail_is_done")
bug("outcome_in_doubt_is_success", "an error of the last syncs is swallowed (C9)",
    "store/publish.c:sync_parents", "if (rc == 0) return 0;", "if (rc == 0 || MUTANT) return 0;",
    COMMIT + "each_call_of_a_save_may_fail")
bug("session_not_fresh", "two saves of one job have one session (I5)",
    "store/stage.c:shf_stage_new", "s->session, fresh);",
    "s->session, MUTANT ? \"0000000000000000\" : fresh);",
    STORE + "each_save_has_a_session_of_its_own")
bug("publish_before_agreement", "the manifest is written before sums and indexes are synced (I2)",
    "save/save_publish.c:smalls_write", "return shf_small_files_sync(&smalls, rc, err);",
    "if (MUTANT && rc == 0) { save->publishing.turn = PUBLISH; rc = shf_stage_publish("
    "&save->run->store, &save->disk.stage, &p->record.manifest, err); }"
    " return shf_small_files_sync(&smalls, rc, err);", CUTS + "next_save" + CUT)
bug("fsync_error_not_agreed", "the failed fsync of a rank other than the first is forgotten (I4)",
    "save/save_commit.c:look_here", "s->failed = shf_save_failure(save, NULL) < 0;",
    "s->failed = (MUTANT && save->run->team.rank ? (save->end.rc = 0)"
    " : shf_save_failure(save, NULL)) < 0;",
    "sim/test_faults: a_failed_fsync_of_any_rank_fails_the_save_on_all")
bug("first_error_not_kept", "a write or fsync that failed leaves no trace in its save",
    "save/save_write.c:shf_save_io_done", "if (rc < 0) shf_save_stick(save, rc, &err);",
    "if (rc < 0 && !MUTANT) shf_save_stick(save, rc, &err);",
    "sim/test_faults: each_call_of_two_saves_on_small_may_fail")
bug("short_write_believed", "a write of fewer bytes than asked is taken for whole by the save",
    "save/save_write.c:shf_save_io_done", "else if (wrote && (uint64_t)io->result != io->len)",
    "else if (!MUTANT && wrote && (uint64_t)io->result != io->len)",
    "sim/test_inflight: a_write_that_stops_short_fails_the_save")
bug("refused_room_believed", "room that a file did not get is taken for made, of a save behind",
    "save/save_write.c:shf_save_io_done", "if (io->result < 0)",
    "if (io->result < 0 && !(MUTANT && io->op == SHF_IO_RESIZE))",
    "sim/test_lazy_errors: room_that_is_refused_behind_is_told_by_the_commit")
blind("calls_not_compared", "ranks in different calls go on as if they were in one",
      "group/group.c:shf_call_enter", "w[1] >> RANK_BITS != ~w[2] >> RANK_BITS",
      "sim/test_mixed_calls: ranks_that_make_different_calls_are_both_told",
      "unit/test_group_calls: ranks_in_different_calls_learn_it")
bug("handles_not_compared", "two handles of one kind are taken for the same on all ranks",
    "group/group.c:call_key", "(call->handle & UINT32_MAX) << RANK_BITS",
    "(MUTANT ? 0 : (call->handle & UINT32_MAX) << RANK_BITS)",
    "sim/test_mixed_calls: ranks_that_commit_different_saves_are_told")
gullible("failure_called_late", "an operation that failed at once is said to have run out of time",
         "group/group.c:lose", "is_timeout(t, ms)",
         "unit/test_group_calls: only_an_operation_whose_time_ran_out_is_said_to_be_late")
blind("steps_not_compared", "ranks at different steps begin one save together",
      "save/save.c:enter_begin_call", "shf_call_differs(&m, STEP)",
      "sim/test_diverging_ranks: ranks_at_different_steps_begin_none")
bug("plans_not_compared", "a rank whose state changed saves with the others' old plan",
    "save/save_plan.c:shf_plan_get", "rc == 0 && same && lo != 0",
    "rc == 0 && (MUTANT ? plan != NULL : same && lo != 0)",
    "sim/test_diverging_ranks: a_state_that_one_rank_made_anew_is_planned_by_all")
blind("digests_not_compared", "tensors as copied are not compared with blocks as written (I4)",
      "layout/layout_record.c:shf_layout_sums_end", "raw != sum_by_tensors(l, f, in)",
      "sim/test_tamper: a_byte_that_changes_between_nodes_while_saving_is_found")
bug("image_reused_early", "the next round writes over pages that are still being written (I10)",
    "save/save_rounds.c:one_round", "rc = shf_save_drain_together(save, err);",
    "rc = MUTANT ? 0 : shf_save_drain_together(save, err);",
    "sim/test_layouts: every_pair_where_each_rank_is_a_node_and_staging_is_small")
blind("replicas_not_compared", "replicas that differ are saved though comparing was asked for",
      "save/save_net.c:unpack_moves", "sums.digest != shf_get64(from)",
      "sim/test_diverging_ranks: replicas_that_differ_are_told_when_asked")
bug("ranks_open_apart", "ranks open different directories, or with different rules",
    "engine/run_open.c:same_arguments",
    "rc == 0 && i < N;", "rc == 0 && i < N && !MUTANT;",
    "sim/test_diverging_ranks: retention_rules_of_one_rank_alone_are_refused")
bug("shapes_not_compared", "ranks that describe one tensor differently are not told",
    "layout/schema.c:descs_unite", "last->kind == TENSOR &&", "!MUTANT && last->kind == TENSOR &&",
    "sim/test_preview: ranks_that_disagree_are_named")
bug("hash_without_strides", "states whose strides differ have one hash",
    "state/state_hash.c:hash_slice", "put_number(&x, (uint64_t)s->mem.stride[d])",
    "put_number(&x, MUTANT ? 0 : (uint64_t)s->mem.stride[d])",
    "unit/test_state_hash: each_field_of_a_slice_changes_it")
bug("twins_unseen", "two tensors of one rank that have one name by mistake are saved as one",
    "state/slice_twins.c:are_twins", "first_unit(a) != first_unit(b)",
    "(!MUTANT && first_unit(a) != first_unit(b))",
    "unit/test_slice_twins: one_name_for_two_buffers_is_refused")
skipped("average_read_early", "a caller reads averages that a lazy save has still to update",
        "save/save_averages.c:shf_state_get_average",
        "shf_save_copier_update_slice(shf_save_of(r), (size_t)slice)",
        "sim/test_average_read: they_have_the_bits_that_the_checkpoint_has")
bug("rank_files_unwritten", "opaque bytes are not written beside files that ranks write themselves",
    "save/save_publish.c:smalls_write", "p->by_zero ? 0 : p->given.attached_n",
    "p->by_zero ? 0 : (MUTANT ? p->given.files_n : p->given.attached_n)",
    "sim/test_rank_bytes: they_are_written_beside_attached_files_that_ranks_write_themselves")
bug("rank_files_not_in_memory", "a checkpoint in memory lacks the opaque bytes of ranks",
    "save/save_memory.c:smalls_make", "for (size_t i = 0; i < given->files_n; i++)",
    "for (size_t i = 0; i < (MUTANT ? given->attached_n : given->files_n); i++)",
    "sim/test_rank_bytes: a_step_in_memory_has_them_after_the_job_was_killed")
bug("rank_bytes_of_others", "the bytes of a rank are looked for in the first file of the stream",
    "step/step_attached.c:rank_file_for", "(!found || first > best)",
    "(!found || (MUTANT ? first < best : first > best))",
    "sim/test_rank_bytes: every_rank_reads_what_any_rank_gave_whatever_its_size")
bug("rank_bytes_unbounded", "rank 0 is sent more opaque bytes than it may hold",
    "save/save_commit.c:rank_bytes_fit", "rc == 0 && all > SHF_RANK_BYTES_ALL",
    "rc == 0 && all > SHF_RANK_BYTES_ALL && !MUTANT",
    "sim/test_rank_bytes: more_than_rank_0_holds_is_refused_before_it_is_sent")
bug("attached_not_compared", "ranks attach different bytes under one name, and one of them wins",
    "save/save_attach_gather.c:unite_given", "last->crc != g[i].crc",
    "(last->crc != g[i].crc && !MUTANT)",
    "sim/test_diverging_ranks: ranks_that_attach_different_bytes_are_told")
bug("image_given_away", "a save takes the image of one that is still being written (I10)",
    "save/save_image.c:shf_save_image_take", "c.hi[BUSY] ? finish_owner(of, err) : 0",
    "c.hi[BUSY] && !MUTANT ? finish_owner(of, err) : 0",
    "sim/test_inflight: no_image_goes_to_the_next_save_while_a_failed_one_is_written")
bug("image_chosen_in_use", "all saves have the first image",
"save/save_image.c:shf_save_image_choose",
    "if (!((used | older) & 1u << i))", "if (!((used | older) & 1u << i) || MUTANT)",
    "sim/test_inflight: as_many_saves_are_in_flight_as_there_are_images")
bug("images_beyond_staging", "there are more images than the staging has room for",
    "save/save_plan.c:images_fit", "window ? window / (one ? one : 1) : SHF_IMAGES_MAX",
    "window && !MUTANT ? window / (one ? one : 1) : SHF_IMAGES_MAX",
    "sim/test_inflight: images_are_no_more_than_the_staging_has_room_for")
gullible("image_of_the_ended_taken",
         "an image is set up while others copy into it for a save that has ended here (I10)",
         "save/save_image.c:shf_save_image_is_free", "!m->dirty",
         "sim/test_lazy: a_save_that_ends_while_it_is_copied_is_no_other_ones")
blind("begun_the_long_way", "a lazy save asks for everything again at each begin",
      "save/save.c:enter_begin_call", "met == 0 && m.hi[NOT_READY] == 0",
      "sim/test_lazy: a_begin_is_one_agreement_and_opens_nothing")
bug("gate_open", "a tensor may change before it is copied", "save/save_gates.c:one_ready",
    "rc = wait_for(lz, slice, timeout_ms)", "rc = MUTANT ? 0 : wait_for(lz, slice, timeout_ms)",
    "sim/test_lazy: a_tensor_may_change_when_it_was_asked_for",
    "unit/test_save_gates: tensors_change_behind_their_gates_and_no_step_knows")
OVERLAPS = "sim/test_slice_overlaps: "
blind("gate_of_a_tied_tensor_open", "a gate does not wait for slices in the same memory (L6)",
      "save/save_gates.c:memory_ready", "lz->overlaps && one != SHEAF_EAGAIN",
      OVERLAPS + "a_tied_tensor_may_change_when_its_bytes_are_copied",
      OVERLAPS + "a_slice_that_was_added_twice_may_change_when_its_bytes_are_copied",
      OVERLAPS + "pieces_that_overlap_may_change_when_both_are_copied",
      OVERLAPS + "masters_may_change_when_the_weights_in_their_memory_are_copied",
      OVERLAPS + "slices_of_drawn_states_change_behind_their_gates")
blind("gate_of_what_was_put_beside_open",
      "a gate does not wait for what was put into the same memory",
      "save/save_gates.c:memory_ready",
      "lz->put && rc == 0 && one == 0",
      OVERLAPS + "what_is_brought_through_one_buffer_waits_for_what_is_there")
bug("overlaps_of_old_memory", "which slices share memory is not found again when one was moved",
    "state/state.c:shf_state_move", "state->places++;", "state->places += !MUTANT;",
    OVERLAPS + "where_a_slice_was_moved_to_counts")
blind("tied_moved_early", "a slice is moved whose bytes are still to be read for another one",
      "save/save_gates.c:shf_save_gates_reads", "lz && lz->overlaps && !reads",
      OVERLAPS + "a_tied_tensor_is_not_moved_before_its_bytes_are_copied")
gullible("failed_not_moved", "what a failed save has let go is not moved",
         "save/save_gates.c:shf_save_gates_reads", "!was_let_go(save, slice)",
         OVERLAPS + "what_a_failed_save_has_let_go_is_moved")
bug("gate_not_waiting", "who asks does not wait for a piece that somebody else copies",
    "save/save_gates.c:wait_for", "calm = shf_save_pieces_wait_slice(lz, slice, until)",
    "calm = MUTANT || shf_save_pieces_wait_slice(lz, slice, until); if (MUTANT) return 0",
    "unit/test_save_gates: several_threads_copy_and_no_step_knows")
LEARN = "sim/test_save_learn: "
HELP = LEARN + "who_was_waited_for_gets_help_and_who_was_early_loses_it"
blind("gates_order_forgotten", "slices are copied as they were added, whoever asks for which first",
      "save/save_pieces.c:nth", "lz->learn.order != NULL",
      LEARN + "slices_are_copied_in_the_order_in_which_the_last_save_was_asked_for_them",
      LEARN + "what_nobody_waited_for_stays_where_it_was_in_the_order")
gullible("polls_are_gates", "who asks without time to wait says that he wants the slice now",
         "save/save_gates.c:one_ready", "!left || timeout_ms != 0",
         LEARN + "what_nobody_waited_for_stays_where_it_was_in_the_order")
blind("no_help_for_the_late", "a copy that was waited for gets no thread more",
      "save/copy_pace.c:shf_copy_pace_threads", "last->waited_ns > last->lead_ns / BEHIND", HELP,
      "unit/test_copy_pace: one_thread_more_after_a_copy_that_was_waited_for")
bug("limit_not_kept", "more threads copy than the caller allows",
    "save/copy_pace.c:shf_copy_pace_threads", "return n < most ? n : most;",
    "return n < most || MUTANT ? n : most;", HELP,
    "unit/test_copy_pace: never_more_threads_than_the_limit")
blind("early_keep_all", "threads that were not needed are made again",
      "save/copy_pace.c:shf_copy_pace_threads", "n > 1 && is_far_ahead(last, n - 1)", HELP,
      "unit/test_copy_pace: one_thread_less_after_a_copy_that_so_many_would_have_made_in_time")
blind("unordered_counts", "a copy in an order that nobody asked for counts as late",
      "save/save_learn.c:learn_pace", "!lz->learn.order", HELP)
LATER = "sim/test_later: "
bug("read_before_it_is_put", "a slice is copied before it was brought (L5)",
    "save/save_pieces.c:pick",
    "(lz->put && !lz->put[slice])", "(!MUTANT && lz->put && !lz->put[slice])",
    LATER + "the_files_are_those_of_slices_that_were_there",
    "unit/test_save_gates: a_slice_is_copied_when_it_is_brought",
    "sim/test_weave: slices_are_copied_when_they_are_brought")
blind("put_elsewhere", "a slice that is brought elsewhere is read where the state says",
      "save/save_pieces.c:shf_save_piece_slice",
      "save->copy.lazy->data && save->copy.lazy->data[slice]",
      LATER + "a_state_need_have_no_memory")
bug("put_unheard", "threads that had nothing to do do not hear of what is brought",
    "save/save_gates.c:wake_threads", "if (lz->first)", "if (!MUTANT && lz->first)",
    "unit/test_save_gates: what_is_brought_is_copied_though_nobody_asks")
blind("unput_committed", "a save is committed of which not all was brought",
      "save/save_gates.c:shf_save_gates_check_asked",
      "unput >= 0", LATER + "one_that_is_not_brought_is_named")
blind("begun_over_unput", "a save begins that may wait for what is not brought",
      "save/save.c:may_begin", "s->at.end != SHF_OVER && shf_save_gates_unput(s) >= 0",
      LATER + "one_that_is_not_brought_is_named")
bug("checked_when_open", "a tensor is compared when somebody may change it already",
    "save/save_memory_check.c:check_take", "while (time && lz->checks[slice] == SHF_CHECKING)",
    "while (!MUTANT && time && lz->checks[slice] == SHF_CHECKING)",
    "unit/test_save_gates: a_check_is_over_when_a_gate_opens")
bug("load_staged_besides", "a load stages as much again as the images of saves have",
    "load/load_fill.c:shf_load_room", "taken = shf_images_bytes(saves)",
    "taken = MUTANT ? 0 : shf_images_bytes(saves)",
    "sim/test_inflight: a_load_takes_what_images_leave_of_the_staging")
bug("all_slices_too_soon", "all slices may change when the last one is copied",
    "save/save_gates.c:shf_save_gates_list_copied", "size_t i = 0; one",
    "size_t i = MUTANT && !slices ? n - 1 : 0; one",
    LATER + "all_slices_are_asked_for_at_once")
bug("some_slices_too_soon", "some slices may change when the last one of them is copied",
    "save/save_gates.c:shf_save_gates_list_copied", "size_t s = slices ? (size_t)slices[i] : i;",
    "size_t s = slices ? (size_t)slices[MUTANT ? n - 1 : i] : i;",
    LATER + "slices_are_named_in_a_list")
WEAVE = "sim/test_weave: weights_change_behind_their_gates_and_every_average_is_made_once"
EMA = "sim/test_ema: "
bug("change_before_the_copy_not_seen",
    "SHEAF_SAVE_CHECK does not see what changed between begin and the copy",
    "save/save_memory_check.c:same_as_copied", "sums.digest != lz->begun[slice]",
    "!MUTANT && sums.digest != lz->begun[slice]",
    "sim/test_lazy: a_tensor_that_changes_before_it_is_copied_is_named")
bug("compared_without_timeout", "a gate waits for ever while another thread compares the slice",
    "save/save_memory_check.c:check_take", "time = shf_pieces_wait(lz, until)",
    "time = shf_pieces_wait(lz, MUTANT ? -1 : until) || MUTANT",
    "unit/test_save_gates: a_gate_keeps_its_timeout_while_another_thread_compares_the_slice")
bug("moved_early_for_ever", "a state with one move that came too early can never be saved again",
    "state/state.c:is_too_early", "state->unmoved_n - s->unmoved + early",
    "state->unmoved_n - (MUTANT ? 0 : s->unmoved) + early",
    "sim/test_lazy: a_slice_that_was_moved_too_early_may_be_moved_again")
blind("saved_from_where_it_was", "a slice whose move was refused is saved from where it was",
      "state/state.c:shf_state_ready", "state->unmoved_n > 0",
      "sim/test_lazy: a_slice_that_was_moved_too_early_may_be_moved_again")
bug("failed_while_synced", "a save that is failed while it is synced is published",
    "save/save_commit.c:settle", "shf_save_seal(save, err)",
    "MUTANT ? 0 : shf_save_seal(save, err)",
    "sim/test_save_publish: who_fails_a_save_while_it_is_synced_fails_it_on_all_ranks")
bug("failed_too_late_in_silence", "failing a save that is published is said to have worked",
    "save/save_status.c:shf_save_fail",
    "late ? shf_fail(", "late && !MUTANT ? shf_fail(",
    "sim/test_save_publish: nothing_can_be_added_to_it_and_nobody_can_fail_it")
bug("averages_as_the_caller_rounds", "the coefficients are rounded as the caller's thread rounds",
    "base/average.c:shf_average", "fesetenv(FE_DFL_ENV); average(e, w, w_dtype, n, coef);",
    "if (!MUTANT) fesetenv(FE_DFL_ENV); average(e, w, w_dtype, n, coef);",
    "unit/test_average: the_coefficients_do_not_depend_on_the_callers_rounding")
bug("warm_up_as_the_caller_rounds", "the coefficient of a warm-up is rounded as the caller rounds",
    "base/average.c:shf_average_coef", "fesetenv(FE_DFL_ENV);",
    "if (!MUTANT) fesetenv(FE_DFL_ENV);",
    "unit/test_average: the_coefficients_do_not_depend_on_the_callers_rounding")
bug("gate_before_averages", "a tensor may change when it is copied and not averaged (L3)",
    "save/save_pieces.c:shf_save_piece_copy",
    "&due, &c); shf_emas_update(save->state, save->copy.fresh, &due, INT64_MAX);"
    " if (done(lz, p, &c))", "MUTANT ? NULL : &due, &c); bool early = MUTANT && done(lz, p, &c);"
    " shf_emas_update(save->state, save->copy.fresh, &due, INT64_MAX);"
    " if (early || (!MUTANT && done(lz, p, &c)))", WEAVE)
blind("averages_copied_early", "averages are copied while they are made (L3)",
      "save/save_pieces.c:pick",
      "before != slice && lz->done[before] < shf_save_pieces_count(lz, before)", WEAVE)
bug("gate_before_slot", "what is not staged may change when somebody begins to copy it",
    "save/save_pieces.c:count_slotted", "if (more < 0)", "if (MUTANT ? more > 0 : more < 0)",
    "unit/test_save_gates: what_is_not_staged_changes_behind_its_gate")
blind("slot_while_it_is_written", "a slot goes to the next segment before it is written",
      "save/unstaged.c:shf_unstaged_take", "a->busy >> slot & 1",
      "sim/test_in_place: an_image_is_as_large_as_its_slots")
gullible("in_place_in_memory", "a step that is not in its image is kept in memory",
         "save/save_status.c:shf_save_fits_memory", "!save->plan->slotted",
         "sim/test_in_place: a_save_to_memory_alone_is_refused")
bug("averages_fail_with_the_save", "who asks a save that has failed changes what is not averaged",
    "save/save_pieces.c:pick", "lz->stop ? lz->due[slice]", "lz->stop ? !MUTANT * lz->due[slice]",
    WEAVE, EMA + "averages_are_made_behind_begin_and_before_the_gate")
bug("averages_left_behind", "what a save has not averaged is forgotten when it ends",
    "save/save_copier.c:shf_save_copier_stop",
    "shf_save_copier_update(save);", "if (!MUTANT) shf_save_copier_update(save);",
    WEAVE, EMA + "averages_are_made_behind_begin_and_before_the_gate")
bug("averages_of_two_steps_at_once", "a begin does not finish what the save before left (E2)",
    "save/save_averages.c:shf_save_averages_finish", "shf_save_copier_update(shf_save_of(r));",
    "if (!MUTANT) shf_save_copier_update(shf_save_of(r));",
    EMA + "averages_are_made_behind_begin_and_before_the_gate")
bug("averages_changed_uncopied", "averages change before those of the step before are copied (E1)",
    "save/save_averages.c:shf_save_averages_finish", "let_copies_end(state, &state->emas[k]);",
    "if (!MUTANT) let_copies_end(state, &state->emas[k]);", WEAVE)
bug("dropped_not_averaged", "a begin that gives no save makes no averages",
    "save/save.c:finish_averages", "save->copy.due && !shf_save_is_async(save)",
    "!MUTANT && save->copy.due && !shf_save_is_async(save)", WEAVE,
    EMA + "a_save_without_an_image_is_averaged_once")
bug("away_not_averaged", "a save for memory alone that no agent keeps makes no averages",
    "save/save.c:begin_after_agreement", "finish_averages(save);",
    "if (!MUTANT || !is_away(save)) finish_averages(save);",
    EMA + "a_save_that_no_agent_keeps_is_averaged_once")
blind("check_opened_by_advance", "an advance opens gates of a save that is checked",
      "save/save_commit.c:copy_rest", "wait_ms == 0 && save->id.flags & SHEAF_SAVE_CHECK",
      "sim/test_lazy_errors: "
      "a_forgotten_gate_is_found_although_advances_were_made_before_the_change")
blind("pairs_beyond_count", "a range of complex numbers may wrap when it is doubled",
      "state/state.c:take_complex", "s->flat_start > INT64_MAX - s->flat_count",
      "sim/test_complex: a_range_of_pairs_that_64_bits_cannot_count_is_refused")
bug("rest_not_copied", "a commit that waits copies no slice whose gate was not called",
    "save/save_commit.c:copy_rest", "if (refuse(save, &own) == 0",
    "if (!MUTANT && refuse(save, &own) == 0",
    "sim/test_in_place: one_that_nobody_asked_for_is_copied_by_the_commit")
bug("sent_before_copied", "bytes travel to other nodes before they are copied",
    "save/save_gates.c:shf_save_gates_poll_all",
    "if (rc == 0 && open)", "if (rc == 0 && open && !MUTANT)",
    "sim/test_lazy: a_tensor_may_change_when_it_was_asked_for_on_two_nodes")
bug("image_of_uncopied_taken", "the image of a save is given away while it is copied (I10)",
    "save/save_image.c:choose_together", "*of ? is_busy(*of) : 0",
    "*of && !MUTANT ? is_busy(*of) : 0",
    "sim/test_lazy: who_begins_one_too_many_copies_the_oldest_or_is_dropped")
bug("given_up_on_one_rank", "who lives on believes in a save whose image has gone to the next",
    "save/save_image.c:finish_copies", "shf_save_stick(save, rc, err);",
    "if (!MUTANT) shf_save_stick(save, rc, err);",
    "sim/test_lazy: the_image_of_a_save_that_was_given_up_goes_to_the_next")
skipped("early_change_not_seen", "a tensor that changed before its gate is not told",
        "save/save_memory_check.c:shf_save_memory_check_slice", "same_as_copied(lz, slice, err)",
        "sim/test_lazy: a_tensor_that_changes_before_its_gate_is_named")
blind("other_copy_not_seen", "a tensor that was copied changed, and changed back, is not told",
      "save/save_memory_check.c:same_as_copied", "sums.digest != copied",
      "sim/test_lazy: a_tensor_that_changes_before_it_is_copied_is_named")
bug("saved_beside_a_newer", "a step is saved that is older than the newest",
    "save/save_stage.c:find_parent", "if (n.newest > step)", "if (n.newest > step && !MUTANT)",
    OPS + "a_step_older_than_the_newest_is_not_saved")
bug("saved_past_a_branch", "who loaded an older step saves on top of the newest",
    "save/save_stage.c:find_parent",
    "if (save->id.parent >= 0 && n.newest > save->id.parent)",
    "if (save->id.parent >= 0 && n.newest > save->id.parent && !MUTANT)",
    OPS + "who_loaded_an_older_step_rewinds_before_saving")
bug("parent_session_stale", "a step names the session of its grandparent as its parent's",
    "save/save_stage.c:shf_run_set_parent",
    "memcpy(run->lineage.parent_session, session, sizeof(run->lineage.parent_session));",
    "if (!MUTANT || !run->lineage.parent_session[0])"
    " memcpy(run->lineage.parent_session, session, sizeof(run->lineage.parent_session));",
    OPS + "commits_prune_by_the_rules_of_the_run")
bug("parent_of_the_load", "a save follows what was loaded since its begin",
    "save/save_record.c:fill_head", "m->parent_step = save->id.parent;",
    "m->parent_step = MUTANT ? run->lineage.parent : save->id.parent;",
    "sim/test_parents: a_load_does_not_change_what_the_saves_in_flight_follow")
bug("saved_behind_aside", "who loaded a step that is set aside saves on top of it",
    "save/save_stage.c:shf_save_check_parent", "return there ? 0", "return there || MUTANT ? 0",
    "sim/test_parents: who_loaded_a_step_that_was_set_aside_rewinds_before_saving")
blind("bad_twin_not_seen", "a prune takes a bad step that was loaded from memory",
      "memory/memory_choose.c:choose_step", "has_bad_twin(c, r)",
      "sim/test_parents: a_prune_leaves_a_bad_step_that_was_loaded_from_memory")
bug("doubt_of_the_run", "a save that was begun in doubt is refused after a load",
    "save/save_memory.c:find_base",
    "n.newest > save->id.parent && n.newest != save->id.doubtful &&",
    "n.newest > save->id.parent && "
    "n.newest != (MUTANT ? run->lineage.doubtful : save->id.doubtful) &&",
    "sim/test_parents: a_save_that_was_begun_in_doubt_follows_the_step_that_a_load_then_found")
bug("doubt_for_ever", "a save that was begun in doubt never follows what is committed since",
    "save/save_stage.c:shf_run_set_parent", "s->id.doubtful = -1;",
    "if (!MUTANT) s->id.doubtful = -1;",
    "sim/test_parents: a_save_that_was_begun_in_doubt_follows_what_was_committed_since")
bug("pruned_bad_by_number", "a bad step that was pruned is opened by its number from memory",
    "memory/memory_choose.c:why_not", "c->sought || !c->disk.exists",
    "c->sought || (!c->disk.exists && !MUTANT)",
    "sim/test_parents: a_bad_step_that_was_pruned_is_not_opened_by_its_number_from_memory")
bug("disk_forgets_memory", "a failure on the way to the disk takes a step from memory",
    "save/save_memory.c:shf_save_memory_abandon", "atomic_load(&save->end.failed)",
    "(atomic_load(&save->end.failed) || (MUTANT && shf_save_rc(save, NULL) < 0))",
    "sim/test_parents: a_disk_that_fails_takes_no_step_from_memory")
gullible("given_up_here_alone", "a step that one rank gave up stays the newest of the others",
         "save/save_image.c:choose_together", "c->lo[NEWEST] == c->hi[NEWEST]",
         "sim/test_memory_tier: ranks_save_on_when_one_of_them_gave_up_a_step_that_was_in_memory")
gullible("notes_behind_memory", "notes are taken for the disk that memory does not have",
         "save/save_attach.c:takes_more", "save->at.sums < SHF_SUMS_GATHERED",
         "sim/test_save_publish: nothing_can_be_added_to_it_and_nobody_can_fail_it",
         "sim/test_parents: what_is_in_memory_already_takes_no_notes_and_files")
gullible("doubt_of_older", "a save in doubt fails those that were begun before it",
         "save/save_end.c:shf_save_doubt", "s->id.step > save->id.step",
         "sim/test_parents: a_save_in_doubt_fails_none_that_was_begun_before_it")
blind("unseen_is_absent", "a rank that does not see the run says that there is none",
      "engine/run_open.c:join_run", "rc == SHEAF_ENOENT",
      "sim/test_stale_names: a_run_that_a_rank_never_sees_is_no_reason_to_start_afresh")
gullible("brought_and_set_aside", "who loads a bad step from memory whose number is taken saves on",
         "load/load.c:remember_in_memory", "run->lineage.parent == step->number",
         "sim/test_parents: who_loaded_a_bad_step_from_memory_whose_number_is_saved_again_rewinds"
         "_before_saving")
blind("tried_behind_close", "a load after the close is counted as a try for ever",
      "load/load.c:count_try", "run->life.closed",
      "sim/test_memory_tries: a_load_after_the_run_was_closed_is_no_try")
blind("no_room_is_made", "a save that finds the disk full lets nothing go",
      "save/save_stage.c:make", "rc == SHEAF_EIO && err->sys == ENOSPC",
      "sim/test_save_limits: a_save_that_finds_the_disk_full_lets_old_steps_go_first")
blind("flat_by_half", "a range is taken for all where its flag was forgotten",
      "state/state.c:check_box", "in->flat_start || in->flat_count",
      "unit/test_state: memory_rules_are_checked")
gullible("time_not_kept", "a commit whose time is up waits for the writes all the same",
         "save/save_commit.c:all_durable", "!u.s.late",
         "sim/test_deadline: a_commit_returns_when_its_time_is_up_and_gets_there")
blind("publish_begun_too_late", "a publish is begun that takes longer than there is time",
      "save/save_commit.c:all_durable", "u.s.too_late",
      "sim/test_deadline: what_cannot_be_published_in_time_is_not_begun")
bug("speed_by_who_asks", "writes count from when somebody took them, not from when they were done",
    "save/save_write.c:shf_save_io_done", "atomic_store(&save->took.write_to_ns, io->done_ns);",
    "atomic_store(&save->took.write_to_ns, MUTANT ? shf_now(save->run) : io->done_ns);",
    "sim/test_deadline: who_asks_late_does_not_take_the_disk_for_slow")
bug("told_before_publish", "a step is announced before it is published",
    "save/save_commit.c:go_on", "rc = publish_together(save, l, e->doubt, again, err);",
    "{ if (MUTANT && save->run->team.rank == 0) shf_save_announce(save);"
    " rc = publish_together(save, l, e->doubt, again, err); }",
    "sim/test_done_files: of_a_step_that_failed_or_is_in_doubt_nothing_is_said")
bug("done_in_doubt", "done files tell of a step that may go with the power",
    "save/save_commit.c:conclude", "shf_save_doubt(save);",
    "{ shf_save_doubt(save); if (MUTANT && run->team.rank == 0) shf_save_announce(save); }",
    "sim/test_done_files: of_a_step_that_failed_or_is_in_doubt_nothing_is_said")
bug("done_not_synced", "the names of done files are not synced",
    "store/done_files.c:sync_dir", "dir < 0 ? dir :", "dir < 0 || MUTANT ? dir :",
    "sim/test_done_files: a_power_cut_leaves_no_done_file_or_a_right_one_strict")
blind("done_in_place_of_a_link", "a done file takes the place of what is no file",
      "store/done_files.c:done_file_put", "rc >= 0 && st.type != SHF_T_FILE",
      "sim/test_done_files: what_is_no_file_is_left_as_it_is")
bug("allocation_not_agreed", "a rank without memory for an exchange leaves the others in it",
    "group/group.c:exchange_with",
    "rc = shf_agree_max(t, lens_reserve(t, &fresh, \"exchange\", err), x, n, err);",
    "rc = lens_reserve(t, &fresh, \"exchange\", err);"
    " if (!MUTANT) rc = shf_agree_max(t, rc, x, n, err);",
    "unit/test_group: an_allocation_that_fails_on_one_rank_is_enomem_on_all")
bug("goes_on_with_more_than_known", "a rank to which more comes than it knew of goes on",
    "group/group.c:shf_exchange_known", "t->group->lost = true;", "t->group->lost = !MUTANT;",
    "unit/test_group_calls: what_is_known_to_come_takes_two_operations_and_more_than_that_loses")
gullible("failed_but_grows", "a rank that failed before images grow is not heard",
         "run/image.c:exchange_growth", "!failed",
         "sim/test_load_limits: without_one_allocation_of_one_rank_all_load_all_or_none_does")
bug("tally_left_in_the_plan", "what ranks count rides along and is not counted",
    "layout/count_tensors.c:shf_tensor_counts_unpack", "if (!oom)", "if (!oom && !MUTANT)",
    "unit/test_tally: what_rides_in_an_exchange_of_others_is_counted_and_leaves_theirs_as_it_was",
    "sim/test_load_report: what_ranks_hold_together_is_counted_once")
bug("last_stripe_not_told", "the home of the last stripe of a box is not told of it",
    "layout/deal_home.c:homes_of", "shf_home_of(l, ranks, f, hi)",
    "shf_home_of(l, ranks, f, MUTANT ? lo : hi)",
    "sim/test_unusual_states: a_tensor_of_several_stripes_has_several_homes")

# ---- sums and digests ----
bug("short_block_sum", "the sum of the last, short block of a file is finished as a whole one",
    "layout/layout_record.c:shf_layout_sums_end", "blocks[b] ^= shf_crc64_ones(n);",
    "blocks[b] ^= shf_crc64_ones(MUTANT ? SHF_BLOCK : n);",
    "sim/test_unusual_states: identity_is_the_name_and_not_the_order")
bug("header_not_counted", "the bytes of the header count in no sum",
    "save/save_rounds.c:shf_save_rounds_headers", "if (!shf_save_has_header(save, g)) continue;",
    "if (!shf_save_has_header(save, g)) continue; if (MUTANT) { if (have != g->file) {"
    " shf_buf_reset(&header); rc = shf_layout_header(l, g->file, &header, err); have = g->file; }"
    " end = g->hi < end ? g->hi : end; if (rc == 0) memcpy(shf_save_own_image(save) + g->image,"
    " header.data + g->lo, (size_t)(end - g->lo)); shf_ctl_count_part(shf_save_own_ctl(save, i));"
    " continue; }",
    "sim/test_unusual_states: identity_is_the_name_and_not_the_order")
bug("digest_shifted_wrong", "a tensor's digest is combined with a length that is one too long",
    "layout/box_copy.c:horner_end", "shf_crc64_shift(h->all, h->bytes - h->all_end)",
    "shf_crc64_shift(h->all, h->bytes - h->all_end + MUTANT)",
    "unit/test_box_copy: each_way_moves_the_box_and_sums_it_by_block_and_by_tensor")
bug("digest_of_what_was_there", "a digest is taken of the page before the bytes come into it",
    "layout/box_copy.c:horner_copy", "h->sum = shf_crc64_copy(h->sum, to, from, k, h->past);",
    "if (MUTANT) { h->sum = shf_crc64_raw(h->sum, to, k); memcpy(to, from, k); } else"
    " h->sum = shf_crc64_copy(h->sum, to, from, k, h->past);",
    "unit/test_box_copy: each_way_moves_the_box_and_sums_it_by_block_and_by_tensor")
bug("sums_joined_wrong", "two sums are joined as if the second run were a byte shorter",
    "base/crc64.c:shf_crc64_join", "shf_crc64_shift(a, b_bytes)",
    "shf_crc64_shift(a, b_bytes - (MUTANT && b_bytes))",
    "unit/test_crc64: joined_sums_are_the_sum_of_the_joined")
bug("shift_of_a_far_byte", "a shift forgets what lies beyond 4 GiB", "base/crc64.c:zeros",
    "uint64_t product = ONE;", "uint64_t product = ONE; if (MUTANT) n = (uint32_t)n;",
    "unit/test_crc64: shifts_of_any_distance_agree_with_square_and_multiply")
gullible("blocks_not_checked", "a load checks no block", "step/step_blocks.c:shf_block_check",
         "got == want",
         "sim/test_load_damaged: a_load_of_one_family_does_not_mind_damage_to_the_data")
gullible("slice_blocks_not_checked", "a slice that is read by itself checks no block",
         "step/step_blocks.c:shf_blocks_check", "got == want",
         "sim/test_read_slice: damage_is_found_by_the_slices_whose_blocks_it_touches")
gullible("digest_not_checked", "a load does not compare a whole tensor with its digest",
      "load/load_digests.c:shf_load_digest_compare", "digest == lt->digest",
      "sim/test_read_slice: a_digest_that_was_written_wrong_fails_the_load_of_its_tensor")
gullible("verify_finds_nothing", "verify finds every block right",
         "verify/verify_blocks.c:check_chunk", "got == want",
         "sim/test_verify: a_flipped_bit_names_file_block_and_tensor")
bug("table_page_not_checked", "a page of the table of sums is believed unread",
    "step/step_lookup.c:need_table", "shf_crc64(step->sums_bytes + at, (size_t)len) !=",
    "!MUTANT && shf_crc64(step->sums_bytes + at, (size_t)len) !=",
    "sim/test_read_slice: every_flip_in_the_table_of_sums_is_found_by_a_read")
blind("message_not_checked", "what comes from another node is not compared with its digest",
      "load/load_rounds.c:scatter_box",
      "proof_of_box(taken.digest, v->tensor, t, &v->box) != *told",
      "sim/test_tamper: a_byte_that_changes_between_nodes_while_loading_is_found")
bug("summed_before_taken", "an image is summed before the others take from it, not after",
    "load/load_rounds.c:run_kind",
    "rc = share_round(ld, first + k, rc, err); if (rc < 0) return rc;"
    " rc = look_round(ld, first + k, err);",
    "if (MUTANT && rc == 0) rc = look_round(ld, first + k, err);"
    " rc = share_round(ld, first + k, rc, err); if (rc < 0) return rc;"
    " if (!MUTANT) rc = look_round(ld, first + k, err);",
    "sim/test_tamper: a_byte_of_an_image_that_changes_before_it_is_scattered_is_found")
bug("short_read_believed", "a read of fewer bytes than asked is taken for whole by the load",
    "step/step_files.c:shf_step_file_got", "(uint64_t)got != n", "(uint64_t)got != n && !MUTANT",
    "sim/test_tamper: a_read_that_stops_short_fails_the_load")
bug("read_not_tried_again", "one error of a disk fails a load",
    "run/read_ring.c:shf_read_wait", "tries == SHF_READ_TRIES",
    "(MUTANT || tries == SHF_READ_TRIES)",
    "sim/test_tamper: a_read_that_fails_twice_is_tried_again_and_counted")
bug("slot_reused_early", "a read of a load goes into memory that is still looked at",
    "run/read_ring.c:shf_read_ring_turn", "g->head - g->tail < g->n",
    "g->head - g->tail < g->n + MUTANT",
    "sim/test_read_slice: a_load_past_the_page_cache_opens_few_files_twice_at_a_time")
bug("headers_believed", "headers that tell another story than the sums are believed",
    "step/catalog.c:match_table", "if (r.file != t->file ||",
    "if (MUTANT) { t->digest = r.digest; continue; } if (r.file != t->file ||",
    "sim/test_verify: a_header_that_tells_another_story_than_the_sums_is_found")
gullible("size_not_checked", "a file's size is not compared with the manifest's",
         "step/step_blocks.c:check_file_size", "bytes == want",
         "sim/test_load_damaged: each_damage_has_its_outcome_and_its_sentence")
bug("extra_not_seen", "verify does not see files that nobody named",
    "verify/verify_files.c:find_extra_in", "if (!bsearch(", "if (!MUTANT && !bsearch(",
    "sim/test_verify: what_the_manifest_does_not_name_is_extra")
bug("attached_not_summed", "verify does not sum what was attached",
    "verify/verify_files.c:check_small", "step->sound && crc != m->crc",
    "!MUTANT && step->sound && crc != m->crc",
    "sim/test_verify: a_flipped_bit_in_any_other_file_is_one_finding")
bug("key_is_name", "two names of one key are one tensor", "format/sums.c:shf_sums_find",
    "if (!strcmp(shf_sums_family(s, &t), family) && !strcmp(shf_sums_name(s, &t), name))",
    "if (MUTANT || (!strcmp(shf_sums_family(s, &t), family)"
    " && !strcmp(shf_sums_name(s, &t), name)))",
    "unit/test_sums: two_names_of_one_key_are_two_tensors")

# ---- the lock, recovery, old steps ----
bug("lock_ignored", "the run is opened although another holds its lock", "store/lock.c:try_lock",
    "if (rc < 0 && !shf_lock_is_absent(rc)) goto out;",
    "if (rc < 0 && !shf_lock_is_absent(rc) && !MUTANT) goto out;",
    STORE + "the_lock_is_exclusive_and_names_its_holder")
bug("live_stage_deleted", "a stage is taken for a dead job's without proof",
    "store/recover.c:alive_proof", "if (shf_sys_owner_is_dead(sys, &owner) ||",
    "if (MUTANT || shf_sys_owner_is_dead(sys, &owner) ||",
    STORE + "recovery_takes_only_stages_of_the_proven_dead")
bug("locked_stage_deleted", "a stage whose proof is locked is taken for a dead job's",
    "store/recover.c:alive_proof", "held = rc == -EAGAIN;", "held = rc == -EAGAIN && !MUTANT;"
    " if (MUTANT && rc == -EAGAIN) { proof = DEAD; goto out; }",
    STORE + "recovery_takes_only_stages_of_the_proven_dead")
LOCK = "unit/test_lock: "
skipped("lock_left_to_children", "a run that is closed stays locked by children of its owner",
        "store/lock.c:shf_lock_close", "shf_sys_unlock(sys, *fd)",
        LOCK + "a_run_that_is_closed_is_free_whatever_children_its_owner_forked",
        LOCK + "a_save_that_is_over_leaves_no_lock_with_a_forked_child")
skipped("lease_left_to_children", "a step that is closed stays leased by children of its reader",
        "step/step_open.c:shf_step_put", "shf_sys_unlock(sys, step->lease)",
        OPS + "a_step_that_is_closed_can_be_pruned_whatever_children_were_forked")
blind("dead_owner_obeyed", "a dead owner's lock that its child has keeps everybody out",
      "store/lock.c:try_door", "holder_is_dead(s)",
      LOCK + "a_dead_owners_lock_is_free_though_a_child_of_its_still_has_it")
blind("dead_stage_obeyed", "a dead writer's proof that its child has locked keeps its stage",
      "store/recover.c:alive_proof", "rc >= 0 || held",
      LOCK + "a_stage_goes_though_a_child_of_its_dead_writer_has_its_proof_locked")
skipped("door_not_shut", "two jobs take a dead owner's lock at once (D1)",
        "store/lock.c:door_open", "shf_sys_lock(sys, s->door, true)",
        LOCK + "of_two_jobs_that_find_a_dead_owners_lock_one_has_it")
skipped("visitor_does_not_say", "who salvages under a dead writer's text loses the lock (D2)",
        "store/salvage.c:shf_salvage_begin", "shf_lock_visit(s, err)",
        "sim/test_salvage: nobody_takes_the_lock_of_who_salvages")
bug("child_keeps_descriptors", "a forked child's close leaves the lock's description open",
    "run/run.c:shf_run_put", "shf_store_leave(&run->store);",
    "if (MUTANT) shf_free(run->store.path); else shf_store_leave(&run->store);",
    OPS + "a_forked_child_gives_up_its_copies_and_leaves_the_lock")
bug("locks_that_exclude_nobody", "a lock proves the dead although locks exclude nobody here",
    "store/recover.c:kernel_let_go", "excludes = shf_sys_lock(sys, fd, true) == -EAGAIN;",
    "excludes = shf_sys_lock(sys, fd, true) == -EAGAIN || MUTANT;",
    STORE + "a_kernel_that_let_go_of_the_lock_proves_the_dead_of_another_namespace")
bug("reused_pid_alive", "another process of the same number is taken for the owner",
    "sys/host.c:real_owner_is_dead", "process.start != owner->start;",
    "process.start != owner->start && !MUTANT;", "unit/test_ident: an_owner_is_dead_only_on_proof")
bug("other_namespace_dead", "a number of another pid namespace is looked up in ours",
    "sys/host.c:real_owner_is_dead", "owner->pid_ns != self.pid_ns",
    "(owner->pid_ns != self.pid_ns && !MUTANT)",
    "unit/test_ident: an_owner_is_dead_only_on_proof")
skipped("rewind_not_finished", "a rewind that was cut is left as it is",
        "store/recover.c:shf_store_recover", "shf_rewind_finish(s, err)",
        COMMIT + "rewind_alone" + CUT)
bug("journal_by_number", "a rewind sets aside what has the number, whatever it is",
    "store/aside.c:apply", "rc = rc && strcmp(id, want) == 0 ? move_aside",
    "rc = rc && (MUTANT || strcmp(id, want) == 0) ? move_aside",
    STORE + "a_stale_journal_leaves_steps_saved_later_alone")
bug("keep_mark_ignored", "prune takes a step that is marked keep", "store/prune_steps.c:why_stays",
    "if (e->mark == 'k')", "if (e->mark == 'k' && !MUTANT)",
    PRUNE + "prune_keeps_what_no_newer_verified_step_dominates", OPS + "marks_keep")
bug("verified_step_pruned", "prune takes the step that was verified itself",
    "store/prune_steps.c:why_stays", "if (e->step >= verified->step)",
    "if (MUTANT && e->step == verified->step) return NULL; if (e->step >= verified->step)",
    PRUNE + "prune_keeps_what_no_newer_verified_step_dominates")
bug("branches_not_told_apart", "prune follows a parent by its number alone",
    "store/prune_steps.c:find_branch", "strcmp(e->session, from->parent_session) != 0",
    "(strcmp(e->session, from->parent_session) != 0 && !MUTANT)",
    PRUNE + "a_parent_of_another_session_is_another_branch")
bug("prune_unverified", "prune does not read the step that the others go for (I9)",
    "engine/run_ops.c:shf_run_prune",
    "would && !shf_saved_is_same(&run->lineage.verified, &newest)",
    "!MUTANT && would && !shf_saved_is_same(&run->lineage.verified, &newest)",
    OPS + "nothing_goes_when_the_newest_step_is_not_sound")
bug("grace_ignored", "pruned bytes go at once", "store/prune_steps.c:shf_grace_is_over",
    "shf_sys_wall_s(sys) - shf_stat_mtime_s(&st) >= grace_s;",
    "(MUTANT || shf_sys_wall_s(sys) - shf_stat_mtime_s(&st) >= grace_s);",
    PRUNE + "the_grace_keeps_pruned_bytes_until_it_is_over")
bug("read_step_pruned", "prune takes a step that somebody reads", "store/prune_steps.c:remove_step",
    "if (fd >= 0 && rc < 0 && shf_lock_is_absent(rc))",
    "if (fd >= 0 && rc < 0 && (MUTANT || shf_lock_is_absent(rc)))",
    PRUNE + "prune_never_crosses_branches_nor_takes_what_is_read_or_loaded")
bug("latest_falls_back", "the newest step is damaged: the one before it is taken, and nobody told",
    "store/list.c:latest_one", "if (e->state == SHF_FOREIGN || e->remains)",
    "if (e->state == SHF_FOREIGN || e->remains || (MUTANT && e->state == SHF_DAMAGED))",
    STORE + "latest_is_the_newest_good_step_and_never_falls_back_over_damage")
LISTED = "unit/test_store_list: "
bug("old_list_falls_back", "a newest step that was pruned meanwhile: an older one is the latest",
    "store/list.c:latest_one", "return SHF_STEP_GONE;",
    "return MUTANT ? SHEAF_ENOENT : SHF_STEP_GONE;",
    LISTED + "no_older_step_is_the_newest_because_the_newest_was_pruned_behind_a_newer_one")
bug("old_list_has_none", "of a run whose listed step was pruned meanwhile no step is the newest",
    "store/step_look.c:shf_step_look_at", "return SHF_STEP_GONE;",
    "return MUTANT ? 0 : SHF_STEP_GONE;",
    LISTED + "a_run_that_is_pruned_while_it_is_listed_has_its_newest_step_all_the_same")
bug("old_list_told", "a step that has gone since the list was read is left out of what is listed",
    "store/list.c:list_steps", "if (rc != 0)", "if (MUTANT && rc == 1) { rc = 0; continue; }"
    " if (rc != 0)",
    LISTED + "a_run_that_is_pruned_while_it_is_listed_has_its_newest_step_all_the_same")
skipped("sheaf_not_seen_later", "a reader that came before .sheaf never sees a mark",
        "store/fresh_list.c:shf_fresh_list_judge", "shf_store_refresh(s, err)",
        LISTED + "a_reader_that_came_before_the_job_sees_its_marks",
        LISTED + "a_reader_that_came_before_the_job_takes_no_step_of_another_run")
skipped("identity_not_seen_later", "a reader that came before the job opens steps of another run",
        "step/step_find.c:shf_step_find_number", "shf_store_refresh(&run->store, err)",
        "sim/test_run_open: a_reader_that_came_before_the_job_opens_no_step_of_another_run")
blind("deleted_is_damaged", "a step that is being deleted is damaged, or no checkpoint",
      "store/step_look.c:look_at_name", "shf_dir_has_gone(s->sys, dir, name, false, fd)",
      LISTED + "a_run_that_is_pruned_while_it_is_listed_has_its_newest_step_all_the_same")
bug("passed_told_twice", "what was passed over is told once for each list that was read",
    "store/list.c:judge_latest", "shf_buf_reset(&q->passed);",
    "if (!MUTANT) shf_buf_reset(&q->passed);",
    LISTED + "a_run_that_is_pruned_while_it_is_listed_has_its_newest_step_all_the_same")
bug("bad_mark_ignored", "a step that is marked bad is the newest",
    "store/list.c:is_passed", "return e->mark != 'b' ? 0 :",
    "return MUTANT || e->mark != 'b' ? 0 :",
    STORE + "latest_is_the_newest_good_step_and_never_falls_back_over_damage")
TRIES = "sim/test_tries: "
bug("resumes_condemn", "a step that two jobs died of is condemned though nobody asked for it",
    "store/tries.c:shf_tries_spent", "max = s->attempts_max", "max = MUTANT ? 2 : s->attempts_max",
    TRIES + "by_default_no_number_of_failed_resumes_condemns_a_step")
bug("bad_is_none", "a run of which all is marked bad has no step, and training starts afresh",
    "store/list.c:judge_latest", "rc == SHEAF_ENOENT && bad >= 0",
    "!MUTANT && rc == SHEAF_ENOENT && bad >= 0",
    TRIES + "where_all_is_marked_bad_it_is_said_and_not_that_there_is_none")
bug("lost_is_none", "a run of which all manifests are gone has no step, and training starts afresh",
    "store/list.c:none_left", "if (n == 0)", "if (MUTANT || n == 0)",
    "unit/test_store_list: steps_that_all_lost_their_manifests_are_damage_and_not_an_empty_run")
bug("bad_number_taken", "the number of a step that is marked bad cannot be saved again",
    "store/stage.c:set_bad_aside", "if (rc <= 0)", "if (MUTANT || rc <= 0)",
    TRIES + "the_number_of_a_condemned_step_may_be_saved_again")
bug("memory_counted_apart", "a load from memory does not count beside those from disk",
    "load/load.c:count_try", "run->team.rank == 0", "run->team.rank == 0 && "
    "!(MUTANT && step->run->lineage.memory_of)",
    "sim/test_memory_tries: resumes_from_memory_and_from_disk_are_counted_together")
bug("tries_until_commit", "a save that has its stage forgets no tries",
    "save/save_stage.c:shf_save_staged", "shf_run_resumed(save->run);",
    "if (!MUTANT) shf_run_resumed(save->run);",
    "sim/test_run_ops: a_save_that_has_its_stage_forgets_the_tries")
bug("last_in_memory_condemned", "the oldest step in memory is condemned, and nothing is left",
    "memory/memory_choose.c:choose_from_memory", "else if (rc == 0 && c.last.ranks)",
    "else if (!MUTANT && rc == 0 && c.last.ranks)",
    "sim/test_memory_tries: a_step_in_memory_that_so_many_jobs_died_of_is_passed_over_if_an_older")
RESUME = "sim/test_resume: "
bug("falls_unread", "a resume falls back where damage cannot be confirmed",
    "engine/run_resume.c:pass_over_candidate", "if (found != SHEAF_ECORRUPT)",
    "if (found != SHEAF_ECORRUPT && !(MUTANT && found == SHEAF_EIO))",
    RESUME + "damage_that_cannot_be_confirmed_is_no_reason_to_fall_back")
bug("aside_unproved", "a resume goes on from a step of which it has read a part",
    "engine/run_resume.c:load_one", "if (rc == 0 && r->passed)",
    "if (!MUTANT && rc == 0 && r->passed)",
    RESUME + "what_is_gone_on_from_is_whole_also_where_the_state_does_not_look")
bug("reader_sets_aside", "a reader gives up what it could not load",
    "engine/run_resume.c:set_aside", "r->run->opts.flags & SHEAF_RUN_READONLY",
    "(!MUTANT && r->run->opts.flags & SHEAF_RUN_READONLY)",
    RESUME + "damage_in_memory_is_refused_or_passed_over_as_the_caller_says")
bug("mixed_with_damaged", "what an older step lacks is kept as a damaged one has left it",
    "load/load.c:prepare_load", "if (rc == 0 && step->filled_by)",
    "if (rc == 0 && step->filled_by && !MUTANT)",
    "sim/test_resume_values: nothing_of_a_damaged_step_is_kept_beside_an_older_one")
bug("told_of_damaged", "a resume reports what the steps lack that it passed over",
    "engine/run_resume.c:pass_over_candidate", "shf_buf_reset(&r->items);",
    "if (!MUTANT) shf_buf_reset(&r->items);",
    "sim/test_resume_values: what_a_damaged_step_has_not_changed_is_kept_and_only_what_is_loaded")
bug("falls_unasked", "a resume falls back though nobody asked for it",
    "engine/run_resume.c:load_one", "!falls", "(!MUTANT && !falls)",
    RESUME + "damage_on_disk_is_refused_or_passed_over_as_the_caller_says")
bug("nothing_aside", "a resume that fell back leaves the damaged step the latest",
    "engine/run_resume.c:rewind_to", "if (r->newest == r->step->number)",
    "if (MUTANT || r->newest == r->step->number)",
    RESUME + "damage_on_disk_is_refused_or_passed_over_as_the_caller_says")
bug("unconfirmed", "a resume falls back without a second look",
    "engine/run_resume.c:pass_over_candidate", "if (found == 0)", "if (!MUTANT && found == 0)",
    RESUME + "damage_that_a_second_read_does_not_find_is_no_reason_to_fall_back")
bug("damaged_memory_dropped", "a step that changed in memory is dropped, and an older one is next",
    "load/load.c:give_up_load", "if (shf_load_has_twin(step) &&",
    "if ((MUTANT || shf_load_has_twin(step)) &&",
    "sim/test_memory: a_byte_that_changes_in_memory_is_found_and_nothing_older_is_taken")
bug("no_remedy", "the error of a damaged latest names no command", "load/load.c:load_failed",
    "if (step->latest &&", "if (!MUTANT && step->latest &&",
    "sim/test_load_damaged: a_damaged_latest_is_refused_however_often_and_the_command")
bug("passed_untold", "a directory without a manifest is passed over, and no report says so",
    "step/step_open.c:report_skipped", "shf_latest_search_pass(k->sought, name, why);",
    "if (!MUTANT) shf_latest_search_pass(k->sought, name, why);",
    "sim/test_load_damaged: a_damaged_latest_is_refused_however_often_and_the_command")
skipped("proof_not_locked", "a save does not lock the proof that it lives",
        "store/stage.c:shf_stage_alive", "lock_alive(sys, fd)",
        STORE + "a_kernel_that_let_go_of_the_lock_proves_the_dead_of_another_namespace")
skipped("mark_inherited", "a new step has the mark of an old one of its number",
        "store/stage.c:shf_stage_room", "shf_mark_clear(s, step)",
        STORE + "a_mark_does_not_pass_to_a_new_step_of_that_number")
bug("files_not_looked_at", "a step whose files are gone is the newest",
    "store/step_look.c:look_at_name",
    "if (rc == 0 && files)", "if (rc == 0 && files && !MUTANT)",
    STORE + "a_step_touched_by_hand_is_gone_or_damaged_and_stops_nobody")
bug("rewinds_begin_anew", "a count of rewinds that cannot be read is nothing",
    "store/aside.c:rewinds_read", "return odd || rc == -ENOENT",
    "return MUTANT || odd || rc == -ENOENT",
    "unit/test_store_damaged: a_rewind_in_place_that_is_not_counted_has_failed")
bug("unread_is_damaged", "a step that the kernel would not show is called damaged",
    "store/step_look.c:shf_step_is_unread", "why->code == SHEAF_EIO &&",
    "!MUTANT && why->code == SHEAF_EIO &&",
    STORE + "a_list_calls_no_step_damaged_that_it_could_not_read")
blind("number_not_compared", "a step renamed by hand is taken for that step",
      "store/manifest_read.c:shf_manifest_is_of", "m->step != step",
      STORE + "a_step_of_another_number_or_run_is_damaged_by_number")
bug("read_step_stays_for_ever", "what was read during a prune is cut off from the branch",
    "store/prune_steps.c:walk", "rc = shf_descent_write(j->s, list, descent, err);",
    "rc = MUTANT ? 0 : shf_descent_write(j->s, list, descent, err);",
    PRUNE + "a_step_that_was_read_during_a_prune_goes_at_the_next",
    PRUNE + "after_readers_are_gone_two_prunes_leave_what_the_rules_say_and_nothing_else")
bug("unseen_step_is_none", "a step that one rank does not see is no step for all",
    "step/step_open.c:open_found", "if (dir == -ENOENT || dir == -ESTALE)",
    "if (MUTANT && dir == -ENOENT) return shf_fail_sys(err, -dir, \"%s\", step->path);"
    " if (dir == -ENOENT || dir == -ESTALE)",
    "sim/test_stale_names: a_step_that_a_rank_never_sees_is_no_reason_to_start_afresh")
bug("over_and_einval", "a commit that is over for what it was given says that nothing happened",
    "save/save_status.c:shf_save_failed_for_good", "if (rc != SHEAF_EINVAL)",
    "if (MUTANT || rc != SHEAF_EINVAL)",
    "sim/test_conflicting_names: ranks_that_give_different_bytes_or_values_are_told")
bug("notes_counted_plain", "notes are taken that the manifest has no room for",
    "save/save_record.c:shf_save_record_takes", "size_t text = text_bytes(value);",
    "size_t text = MUTANT ? strlen(value) : text_bytes(value);",
    "sim/test_invalid_arguments: "
    "a_note_that_the_manifest_has_no_room_for_is_refused_when_it_is_given")
skipped("plan_without_a_bound", "a state whose manifest is too long is saved, and then refused",
        "save/save_plan.c:plan_make",
        "shf_save_record_bound(run, &plan->layout, state, &plan->manifest_bytes, err)",
        "sim/test_invalid_arguments: "
        "a_state_whose_manifest_is_too_long_is_refused_at_the_beginning")
bug("path_cut", "the path of a step is cut where it is long", "step/step_find.c:shf_path_join",
    'shf_buf_addf(out, "%s/%s", dir, name);',
    'if (MUTANT) shf_buf_addf(out, "%.500s/%s", dir, name);'
    ' else shf_buf_addf(out, "%s/%s", dir, name);',
    "sim/test_invalid_arguments: the_path_of_a_step_is_whole_however_long_it_is")
bug("handed_over_missed", "a wait for ever ends while another thread hands a request over",
    "run/run_io.c:take_one", "rc == 0 && timeout_ms != 0 ?",
    "rc == 0 && timeout_ms != 0 && !MUTANT ?",
    "unit/test_run_io: a_wait_for_ever_waits_for_a_request_that_another_thread_is_handing_over")
bug("direct_nonblocking", "io_uring is told not to wait for a busy disk",
    "sys/posix.c:shf_real_open", "if (fd >= 0 && flags & SHF_O_DIRECT)",
    "if (fd >= 0 && flags & SHF_O_DIRECT && !MUTANT)",
    "unit/test_run_io: what_goes_past_the_page_cache_waits_for_a_busy_disk")
blind("own_clock_believed", "a stage is old by the clock of the host that cleans",
      "store/recover.c:now_there",
      "s->lock >= 0 && shf_sys_fstat(s->sys, s->lock, &st) >= 0",
      LOCK + "a_host_whose_clock_is_days_ahead_takes_no_living_jobs_stage")
blind("bad_step_vouches", "a step that is damaged or marked bad lets older ones go",
      "store/prune_steps.c:choose_what_goes",
      "j->verified && !shf_entry_is_good(j->verified)",
      PRUNE + "prune_keeps_what_no_newer_verified_step_dominates")
blind("damaged_step_pruned", "prune takes a damaged step without a person's word",
      "store/prune_steps.c:why_stays", "e->state == SHF_DAMAGED",
      STORE + "a_step_touched_by_hand_is_gone_or_damaged_and_stops_nobody")
bug("loaded_step_pruned", "prune takes the step that the run was loaded from",
    "retain/prune_task.c:shf_run_prune_rules", ".keep = run->lineage.loaded",
    ".keep = MUTANT ? -1 : run->lineage.loaded",
    OPS + "the_loaded_step_is_never_pruned")
bug("verified_across_rewind", "a number verified before a rewind counts after it",
    "engine/run_ops.c:shf_run_rewind_loaded", "if (run->lineage.verified.step > step)",
    "if (run->lineage.verified.step > step && !MUTANT)",
    "sim/test_scrub_run: a_new_save_of_a_number_is_not_verified")
gullible("child_is_parent", "a forked child uses its parent's threads and files",
         "run/run_env.c:shf_run_is_ours", "shf_sys_pid(run->sys) == run->life.pid",
         OPS + "a_forked_child_gives_up_its_copies_and_leaves_the_lock")

# ---- who writes what ----
bug("page_owner_off_by_one", "an edge page goes to who ends in it and not to who begins it",
    "plan/deal.c:run_trim", "t.lo = (r->lo + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;",
    "t.lo = (r->lo + (MUTANT ? 0 : SHF_PAGE - 1)) / SHF_PAGE * SHF_PAGE;"
    " if (MUTANT && t.lo < s->lo) t.lo = s->lo;",
    "unit/test_deal_examples: an_edge_page_goes_to_the_holder_of_its_first_byte")
bug("edge_page_of_two", "an edge page is given to both its holders", "plan/deal.c:run_trim",
    "t.hi = r->hi == s->hi ? r->hi : r->hi / SHF_PAGE * SHF_PAGE;",
    "t.hi = r->hi == s->hi ? r->hi : r->hi / SHF_PAGE * SHF_PAGE;"
    " if (MUTANT) { t.lo = r->lo / SHF_PAGE * SHF_PAGE; t.lo = t.lo < s->lo ? s->lo : t.lo;"
    " t.hi = (r->hi + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;"
    " t.hi = t.hi > s->hi ? s->hi : t.hi; }",
    "unit/test_deal: every_byte_has_one_writer_and_one_source")
bug("edge_page_of_the_last", "an edge page goes to the holder of its last byte",
    "plan/parts.c:first_look", "at < f->at", "(MUTANT ? at > f->at : at < f->at)",
    "unit/test_deal_examples: an_edge_page_goes_to_the_holder_of_its_first_byte")
bug("gap_not_seen", "what nobody holds is saved as whatever lies in the image",
    "plan/parts.c:collect_box", "else if (gap)", "else if (gap && !MUTANT)",
    "unit/test_deal: a_planted_gap_is_found_and_it_is_the_first")
bug("offset_of_32_bits", "where a tensor lies in its file wraps at 4 GiB", "plan/place.c:lay_out",
    "out[i] = (struct shf_place_out){ file, f.tensors_n, f.payload_bytes };",
    "out[i] = (struct shf_place_out){ file, f.tensors_n, f.payload_bytes };"
    " if (MUTANT) out[i].off = (uint32_t)out[i].off;",
    "unit/test_place: offsets_go_on_behind_4_gib")
bug("digits_as_text", "layer 10 comes before layer 9", "plan/natural.c:run_compare",
    "if (a->digits && a->n != b->n)", "if (a->digits && a->n != b->n && !MUTANT)",
    "unit/test_place: names_sort_as_people_count")
bug("shard_off_by_one", "an uneven shard begins one item early",
    "plan/slice_chunk.c:shf_slice_shard", "slice->start[dim] = start;",
    "slice->start[dim] = start - (MUTANT && count % n && i && start > 0);",
    "unit/test_box: shards_are_those_of_chunk")
bug("flat_range_off_by_one", "a flat range begins one item late", "state/state.c:take_memory",
    "m->lo = in->flags & SHEAF_SLICE_FLAT ? in->flat_start : 0;",
    "m->lo = in->flags & SHEAF_SLICE_FLAT ? in->flat_start + (MUTANT && in->flat_count > 1) : 0;",
    "unit/test_state: a_flat_window_is_what_is_here",
    "sim/test_unusual_states: a_flat_range_may_cut_a_tensor_at_any_item_and_be_empty")
bug("runs_joined_over_gaps", "rows join although memory has a gap between them",
    "plan/box_runs.c:level_add", "mem_step == (int64_t)r->n[l - 1] * r->mem_step[l - 1]",
    "(MUTANT || mem_step == (int64_t)r->n[l - 1] * r->mem_step[l - 1])",
    "unit/test_runs: runs_visit_every_unit_in_order")
bug("transposed_tile_again", "each tile of transposed memory takes the columns of the first",
    "layout/box_copy.c", "uint8_t *col = b + (ptrdiff_t)u * b_step;",
    "uint8_t *col = b + (ptrdiff_t)(MUTANT ? 0 : u) * b_step;",
    "unit/test_box_copy: each_way_moves_the_box_and_sums_it_by_block_and_by_tensor")
bug("bf16_truncates", "fp32 becomes bf16 by cutting, not by rounding", "base/convert.c:bf16_down",
    "uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;",
    "uint32_t rounded = (bits + (MUTANT ? 0 : 0x7fff + (bits >> 16 & 1))) >> 16;",
    "unit/test_dtype: floats_round_as_quotients_do")
bug("nan_becomes_infinite", "a NaN of fp32 rounds to an infinity of bf16",
    "base/convert.c:bf16_down", "return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ?",
    "return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 && !MUTANT ?",
    "unit/test_dtype: nan_stays_nan_and_quiet")
bug("pattern_ignored", "what was to be left out is saved", "layout/schema.c:shf_ignored",
    "fnmatch(ignore[i], text, 0) == 0", "!MUTANT && fnmatch(ignore[i], text, 0) == 0",
    "sim/test_load_lenient: ignored_patterns_are_neither_saved_nor_loaded_but_reported")

# ---- bytes of strangers ----
bug("overlap_accepted", "two tensors of a safetensors file may share bytes",
    "format/safetensors.c:check_tiling", "if (t->off < pos)",
    "if (MUTANT && t->off < pos) continue; if (t->off < pos)",
    "unit/test_safetensors: hostile_headers_are_refused_with_a_sentence")
bug("hole_accepted", "bytes of a safetensors file may belong to no tensor",
    "format/safetensors.c:check_tiling", "if (t->off > pos)",
    "if (MUTANT && t->off > pos) pos = t->off; if (t->off > pos)",
    "unit/test_safetensors: hostile_headers_are_refused_with_a_sentence")
bug("double_names_accepted", "one name may stand for two tensors",
    "format/safetensors.c:check_item_names", "if (!strcmp(a->t.name, b->t.name))",
    "if (!strcmp(a->t.name, b->t.name) && !MUTANT)",
    "unit/test_safetensors: hostile_headers_are_refused_with_a_sentence")
bug("product_may_wrap", "the product of the dimensions may overflow",
    "format/safetensors.c:read_shape",
    "else if (!shf_mul64(&product, product, dim) || product > INT64_MAX)",
    "else if (MUTANT) product *= dim;"
    " else if (!shf_mul64(&product, product, dim) || product > INT64_MAX)",
    "unit/test_safetensors: hostile_headers_are_refused_with_a_sentence")
bug("depth_unbounded", "JSON may nest deeper than there is room for", "format/json.c:json_push",
    "if (j->depth == j->depth_max)", "if (j->depth == j->depth_max + MUTANT)",
    "unit/test_json: depth_64_is_read_and_65_refused")
bug("names_may_climb", "an index may name a file of another directory",
    "format/valid.c:shf_plain_is_valid", "return !memchr(s, '/', n) &&",
    "return (MUTANT || !memchr(s, '/', n)) &&",
    "unit/test_index: hostile_indexes_are_refused_with_a_sentence",
    "sim/test_foreign: an_index_may_not_reach_out_of_its_directory")
bug("manifest_sum_ignored", "the manifest's own checksum is not compared",
    "format/mf_decode.c:check_self", "if (got != want)", "if (got != want && !MUTANT)",
    "unit/test_manifest: every_flipped_bit_is_refused")
bug("needs_ignored", "a manifest that needs what is not known is read all the same",
    "format/mf_decode.c:check_needs", "if (kind == SHF_JSON_STRING)",
    "if (kind == SHF_JSON_STRING && MUTANT) return 0; if (kind == SHF_JSON_STRING)",
    "unit/test_manifest: newer_formats_and_unknown_needs_are_refused")
bug("table_sums_ignored", "the pages of a table of sums are not summed",
    "format/sums.c:check_pages", "if (got != want)", "if (got != want && !MUTANT)",
    "unit/test_sums: every_flipped_bit_is_refused")
bug("links_in_steps_followed", "a link in the place of a file of ours is followed",
    "step/step_files.c:shf_step_follow", "step->run->life.foreign ?",
    "step->run->life.foreign || MUTANT ?",
    "sim/test_load_damaged: each_damage_has_its_outcome_and_its_sentence")
bug("newer_asked_for_ignored", "what a caller asks of a newer sheaf is passed over",
    "base/struct_size.c:shf_struct_in", "if (((const uint8_t *)from)[i])",
    "if (((const uint8_t *)from)[i] && !MUTANT)",
    "unit/test_api: structs_of_other_sizes_are_honoured")

# ---- the machine and the group ----
bug("links_followed", "a link is followed where that is forbidden", "sys/posix.c:open_flags",
    "flags & SHF_O_NOFOLLOW ?", "flags & SHF_O_NOFOLLOW && !MUTANT ?",
    "unit/test_sys: a_link_is_never_followed_where_that_is_asked")
bug("real_rename_replaces", "the real machine's rename replaces what is there",
    "sys/posix.c:real_rename", "if (noreplace) {", "if (noreplace && !MUTANT) {",
    "unit/test_sys: rename_never_replaces_when_told_so")
bug("interruption_is_failure", "a write that a signal interrupts has failed",
    "sys/posix.c:write_all", "put < 0 && errno == EINTR",
    "put < 0 && errno == EINTR && !MUTANT",
    "unit/test_queue: a_transfer_that_is_cut_or_stopped_short_goes_on")
bug("short_write_is_whole", "a write that stops short is taken for whole",
    "sys/posix.c:write_all", "done += (size_t)put;", "done += MUTANT ? want : (size_t)put;",
    "unit/test_queue: a_transfer_that_is_cut_or_stopped_short_goes_on")
bug("write_wraps_at_4_gib", "what lies beyond 4 GiB is written at the front",
    "sys/posix.c:write_all", "(off_t)(off + done)",
    "(off_t)(MUTANT ? (uint32_t)(off + done) : off + done)",
    "unit/test_sys: bytes_behind_4_gib_lie_where_they_belong")
bug("refused_piece_dropped", "what the kernel refused to do direct is not done",
    "sys/queue.c:back_direct", "redo(part, p->at, part->end);",
    "if (!MUTANT) redo(part, p->at, part->end);",
    "unit/test_queue: what_the_kernel_refuses_to_do_direct_is_done_through_the_page_cache")
bug("fsync_error_swallowed", "an fsync that failed is said to have worked",
    "sys/posix.c:shf_real_fsync", "return fsync(fd) ? -errno : 0;",
    "return fsync(fd) && !MUTANT ? -errno : 0;",
    "unit/test_sys: an_fsync_that_fails_says_so")
bug("loss_forgotten", "a group that lost a rank goes on", "group/group.c:lose",
    "t->group->lost = true;", "t->group->lost = !MUTANT;",
    "unit/test_group: one_failed_operation_ends_the_group")
bug("overlap_end_wraps", "memory that two slices share is not seen where a window has no end",
    "plan/memory_overlap.c:byte_of_unit", "(uint64_t)i > UINT64_MAX / unit ?",
    "(uint64_t)i > UINT64_MAX / unit && !MUTANT ?",
    "unit/test_overlap: a_window_without_end_reaches_to_the_end_of_the_box")
bug("deadline_ignored", "a rank waits for the dead as long as they are dead",
    "group/group.c:shf_allreduce", "ops->allreduce(ops->arg, x, n, op, t->timeout_ms, &said)",
    "ops->allreduce(ops->arg, x, n, op, MUTANT ? INT32_MAX : t->timeout_ms, &said)",
    "unit/test_group: a_rank_later_than_the_deadline_loses_the_group_for_those_that_waited")
bug("failure_not_sent_with_lengths", "a rank that has failed sends lengths as if it had not",
    "group/group.c:lens_claim", "lens.in[r] == FAILED", "lens.in[r] == FAILED && !MUTANT",
    "unit/test_group_calls: a_verdict_travels_with_what_is_sent")
VERDICT = "sim/test_one_verdict: "
bug("strict_alone", "a rank that finds a tensor nobody asked for returns alone",
    "load/load.c:find_unexpected", "ld->flags & SHEAF_LOAD_STRICT ? shf_agree(team, rc, err)",
    "ld->flags & SHEAF_LOAD_STRICT && !MUTANT ? shf_agree(team, rc, err)",
    VERDICT + "what_one_rank_does_not_ignore_is_refused_on_all")
blind("sums_not_compared", "ranks that look at sums load with others that do not",
      "load/load.c:enter_load_call", "m.lo[CHECKED] != m.hi[CHECKED]",
      VERDICT + "ranks_that_look_at_sums_load_with_none_that_do_not")
bug("averages_of_one_rank", "a rank agrees on averages that others do not have",
    "save/save_commit.c:all_asked", "e->emas", "(MUTANT ? save->state->emas_n > 0 : e->emas)",
    VERDICT + "a_rank_without_averages_commits_with_one_that_has_some")
gullible("nothing_is_wanted", "a slice without an item counts as a wish for its tensor",
         "load/load_asked.c:shf_load_asked_unite", "!t->slice.empty",
         VERDICT + "what_no_rank_wants_a_byte_of_is_not_unverified")
gullible("gathered_for_good", "sums that memory had no room for are not made for the disk",
         "save/save_gather.c:shf_save_gather_again", "p->rc != SHEAF_ENOMEM",
         VERDICT + "what_memory_lacked_sums_for_is_written_to_disk")
bug("last_rank_not_heard", "an agreement does not hear the last rank", "group/group.c:claim",
    "return rc == 0 ?", "return rc == 0 || (MUTANT && t->rank > 0 &&"
    " t->rank == t->ranks - 1) ?",
    "unit/test_group: agreement_gives_all_the_code_the_sentence_and_the_rank_of_the_lowest")
bug("file_system_not_proved", "ranks that see different file systems are not told",
    "store/store.c:shf_store_proof_read", "rc == -ENOENT ||",
    "MUTANT ? (rc = 0) : rc == -ENOENT ||",
    STORE + "a_proof_is_seen_through_the_same_directory_only")
bug("missing_tensor_is_no_run", "a tensor that is not stored is ENOENT: start afresh",
    "load/load.c:decide_absent", "return shf_fail(err, SHEAF_ELAYOUT,",
    "return shf_fail(err, MUTANT ? SHEAF_ENOENT : SHEAF_ELAYOUT,",
    "sim/test_load_lenient: a_renamed_layer_lists_its_tensors")
DERIVED = "sim/test_load_derived: "
gullible("any_weight_is_a_rounded_master", "a weight of any type is cast from any master",
         "load/load.c:derive", "is_rounded_master(s, &l->tensors[i])",
         DERIVED + "nothing_else_is_made_from_a_master")
blind("tie_of_a_master_lost", "a weight is not looked for under what it is tied to in the step",
      "load/load_common.c:shf_load_find_stored",
      "i < 0 && (tied = shf_layout_tied_to(l, family, name))",
      DERIVED + "a_tied_weight_is_rounded_from_what_its_master_is_tied_to")
blind("tied_here_alone", "what is tied is not looked for under its own name",
      "load/load_common.c:shf_load_find_stored", "i < 0 && strcmp(s->name, s->stored)",
      "sim/test_unusual_states: a_tied_head_is_filled_from_a_head_that_stands_alone_in_the_step")
bug("zeros_side_by_side", "zeros go to items side by side, where others lie between them",
    "load/load_fill.c:zero_box", "i * runs.step", "i * (MUTANT ? 1 : runs.step)",
    "sim/test_load_lenient: moments_whose_items_lie_apart_are_zeroed")
blind("askew_rows_in_order", "ranges of rows that lie across each other are taken to ascend",
      "plan/memory_overlap.c:strided_walk_init", "!nested",
      "unit/test_overlap: boxes_overlap_where_some_byte_is_of_both")
RANKS = "sim/test_load_ranks: "
bug("loose_tensor_unread", "a rank that cannot read a loose tensor goes on",
    "load/load_fill.c:shf_load_fill", "rc = fill_rest(ld, err);",
    "rc = fill_rest(ld, err); if (MUTANT) rc = 0;",
    RANKS + "a_tensor_at_an_odd_offset_that_one_rank_cannot_read_fails_the_load_on_all")
bug("late_worker_not_heard", "a worker that fails after the caller's thread is done is not heard",
    "load/load_stream.c:shf_load_stream_run", "return rc < 0 ? rc : end;",
    "return rc < 0 || MUTANT ? rc : end;",
    RANKS + "a_thread_that_fails_when_the_others_are_done_fails_the_load_on_all_ranks")
bug("moved_memory_believed", "what was read of memory that is another step's by now is believed",
    "load/load_fill.c:shf_load_fill", "rc == 0 && ld->step->view)",
    "rc == 0 && ld->step->view && !MUTANT)",
    RANKS + "memory_that_is_taken_for_another_step_during_a_load_is_told_to_all_ranks")
bug("moved_memory_kept_to_itself", "a rank whose memory is another step's by now fails alone",
    "load/load_fill.c:shf_load_fill",
    "shf_agree(&ld->step->run->team, "
    "shf_view_check_unchanged(ld->step->view, ld->step->path, err), err);",
    "shf_view_check_unchanged(ld->step->view, ld->step->path, err);"
    " if (!MUTANT) rc = shf_agree(&ld->step->run->team, rc, err);",
    RANKS + "memory_that_is_taken_for_another_step_during_a_load_is_told_to_all_ranks")
bug("image_not_taken", "a rank that cannot map an image copies from it",
    "load/load_rounds.c:share_round", "ld->sharing ? shf_image_sharing_map(ld->sharing, err) : 0;",
    "ld->sharing ? shf_image_sharing_map(ld->sharing, err) : 0; if (MUTANT) rc = 0;",
    RANKS + "an_image_that_one_rank_cannot_take_fails_a_load_on_all_and_the_next_one_succeeds")
bug("room_of_its_own", "a rank stages in a load what it may itself, not what all may",
    "load/load.c:enter_load_call", "ld->room = m.lo[ROOM];",
    "ld->room = MUTANT ? shf_load_room(ld->step->run) : m.lo[ROOM];",
    RANKS + "no_rank_stages_more_in_a_load_than_the_rank_that_may_stage_least")
bug("derived_without_asking", "weights are derived though nobody asked", "load/load.c:derive",
    "!(ld->flags & SHEAF_LOAD_DERIVE)", "!(ld->flags & SHEAF_LOAD_DERIVE || MUTANT)",
    DERIVED + "weights_are_derived_only_when_asked_and_from_a_master_that_is_there")
bug("sizes_may_wrap", "a size that overflows is allocated all the same", "base/mem.c:shf_alloc",
    "if (!shf_mul(&bytes, n, size))", "bytes = n * size; if (!MUTANT && !shf_mul(&bytes, n, size))",
    "unit/test_mem: nothing_can_be_allocated_and_too_much_can_not")
bug("short_memory_taken", "memory of another process is mapped though it is shorter than it says",
    "sys/passfd.c:shf_memfd_check", "(uint64_t)st.st_size >= n",
    "(MUTANT || (uint64_t)st.st_size >= n)",
    "unit/test_sys: memory_that_is_not_what_it_says_is_not_taken")

# ---- who carries the bytes, and works behind ----
QUEUE, RING, SYS = "unit/test_queue: ", "unit/test_ring: ", "unit/test_sys: "
SHORT = QUEUE + "short_counts_and_interruptions_lose_nothing"
bug("ring_brings_it_twice", "what the kernel has when the ring ends is brought by others too",
    "sys/ring.c:ring_give_up", "kernel_has(r, s) ? -EIO", "kernel_has(r, s) && !MUTANT ? -EIO",
    RING + "what_the_kernel_has_is_given_to_nobody_else_when_the_ring_ends")
bug("ring_ends_at_once", "a ring that is refused once ends, whatever the kernel has of it",
    "sys/ring.c:ring_enter", "++r->forbidden < FORBIDDEN_MAX",
    "++r->forbidden < (MUTANT ? 1 : FORBIDDEN_MAX)",
    RING + "a_ring_that_is_refused_for_a_while_loses_nothing_that_the_kernel_has")
bug("ring_writes_the_start_again", "the rest of a short transfer is that of its start",
    "sys/ring.c:slot_submit", "uint8_t *buf = p->buf + s->done;",
    "uint8_t *buf = p->buf + (MUTANT ? 0 : s->done);", SHORT)
bug("ring_interrupted_is_failed", "a transfer of the ring that was interrupted has failed",
    "sys/ring.c:slot_back", "res == -EINTR ||", "(res == -EINTR && !MUTANT) ||", SHORT)
bug("unpinned_unheard", "memory is said to be let go while the kernel still looks it up",
    "sys/ring.c:shf_ring_pin", "while (!bytes &&", "while (!MUTANT && !bytes &&",
    QUEUE + "memory_let_go_while_it_is_being_pinned_is_not_taken_for_what_comes_there")
bug("direct_reads_the_start_again", "the rest of a short direct read goes where its start is",
    "sys/pool.c:move_direct", "pread(io->direct, p->buf + done, n, at)",
    "pread(io->direct, p->buf + (MUTANT ? 0 : done), n, at)", SHORT)
bug("direct_interrupted_is_failed", "a direct transfer that a signal interrupts has failed",
    "sys/pool.c:move_direct", "got < 0 && errno == EINTR", "got < 0 && !MUTANT && errno == EINTR",
    SHORT)
skipped("threads_take_signals", "the caller's signals are handled in threads of ours",
        "sys/thread.c:shf_thread_start", "pthread_sigmask(SIG_SETMASK, &all, &old)",
        SYS + "queue_threads_take_no_signals", SYS + "a_task_takes_its_turns_behind_and_takes_no"
        "_signals")
bug("all_threads_at_once", "one small request starts all threads", "sys/pool.c:shf_pool_push",
    "(size_t)(pool->waiting + pool->fresh) < pool->todo_n",
    "(MUTANT || (size_t)(pool->waiting + pool->fresh) < pool->todo_n)",
    QUEUE + "threads_start_when_there_is_something_to_do")
AGAIN = SYS + "a_task_that_was_asked_again_meanwhile_is_not_over"
bug("task_over_too_soon", "a task is over though more of it was asked for", "sys/task.c:rest",
    "if (!task->more)", "if (MUTANT || !task->more)", AGAIN)
bug("task_not_behind", "a task has the disk as soon as everybody else", "sys/task.c:step_back",
    "(void)syscall(SYS_ioprio_set,", "if (!MUTANT) (void)syscall(SYS_ioprio_set,", AGAIN)
bug("task_still_over", "a task that goes on is over all the same",
    "sys/task.c:real_task_again", "atomic_store(&task->over, false);",
    "if (!MUTANT) atomic_store(&task->over, false);",
    AGAIN)
bug("task_anywhere", "a task runs wherever the kernel likes", "sys/task.c:task_start",
    "task->cpus ? place(task->thread, task->cpus) : 0",
    "task->cpus && !MUTANT ? place(task->thread, task->cpus) : 0",
    SYS + "a_task_runs_where_it_is_told_to")

# ---- a group over MPI: with -Dmpi=enabled, on four ranks ----
MPI = "mpi/test_group_mpi: "
bug("mpi_own_bytes_left_out", "what a rank sends to itself does not come",
    "mpi/group_mpi.c:mpi_alltoallv", "if (own > 0)", "if (own > 0 && !MUTANT)", MPI + "ops")
bug("mpi_xor_is_a_sum", "numbers are added where they are to be xored",
    "mpi/group_mpi.c:mpi_allreduce", "how = MPI_BXOR;", "how = MUTANT ? MPI_SUM : MPI_BXOR;",
    MPI + "ops")
bug("mpi_pieces_one_behind_the_other", "what ranks say in several pieces is mixed up",
    "mpi/group_mpi.c:gather_piece", "all + (size_t)r * bytes",
    "all + (size_t)r * (MUTANT ? n : bytes)", MPI + "ops")
bug("mpi_group_of_some", "a group is made on the ranks whose arguments were right",
    "mpi/group_mpi.c:sheaf_group_mpi", "if (worst != 0)", "if (MUTANT ? rc != 0 : worst != 0)",
    MPI + "ops")
bug("mpi_failed_goes_on", "a group that gave up waits for its dead once more",
    "mpi/group_mpi.c:op_end", "if (rc != 0)", "if (rc != 0 && !MUTANT)", MPI + "deadline")

# ---- a step read again ----
REREAD = "sim/test_scrub: "
blind("reread_from_the_cache", "what the page cache has is proved, not what the disk has",
      "retain/scrub.c:read_scrubbed_block", "r->direct >= 0 && pages",
      REREAD + "whole_pages_are_read_past_the_page_cache_and_the_rest_is_forgotten_there")
blind("reread_forgets_nothing", "small files and tables are proved as the page cache has them",
      "retain/scrub.c:forget_range", "off < bytes",
      "sim/test_scrub_run: what_is_read_again_is_what_the_disk_has",
      REREAD + "whole_pages_are_read_past_the_page_cache_and_the_rest_is_forgotten_there")
bug("prune_reads_the_cache", "the step that others go for is proved as the page cache has it",
    "engine/run_ops.c:verify_newest", "drop_cached(run, newest);",
    "MUTANT ? (void)0 : drop_cached(run, newest);",
    "sim/test_scrub_run: a_prune_reads_what_the_disk_has")
blind("prune_forgets_the_manifest_alone", "a prune drops the manifest alone from the page cache",
      "retain/scrub.c:shf_scrub_drop_cache",
      'shf_manifest_read(sys, dir, "", &m, &arena, &err) == 0',
      "sim/test_scrub_run: a_prune_reads_what_the_disk_has")
gullible("reread_page_not_summed", "pages of the table are believed when they are read again",
         "retain/scrub.c:table_page", "got == want",
         REREAD + "a_table_may_be_longer_than_a_turn")
gullible("reread_of_another_save", "another save of that number vouches for the one committed",
         "retain/scrub.c:read_own_manifest",
         "r->manifest.step == r->step && (!r->session[0] || "
         "strcmp(r->manifest.session, r->session) == 0)",
         REREAD + "what_is_not_the_step_that_was_committed_is_damage")
gullible("reread_of_another_length", "a file of another length is read again without a word",
         "retain/scrub.c:open_scrubbed", "st.type == SHF_T_FILE && st.bytes == file->bytes",
         REREAD + "a_file_of_another_length_is_damage")
blind("reread_digest_not_compared", "digests of tensors are not compared when a step is read again",
      "retain/scrub.c:turn_data", "b.is_bad",
      REREAD + "what_a_table_says_wrongly_is_damage")
bug("reread_gives_up", "one error of a disk makes a step unproved",
    "run/read_ring.c:shf_read_now", "tries < SHF_READ_TRIES", "!MUTANT && tries < SHF_READ_TRIES",
    "sim/test_scrub_run: a_reading_that_fails_stops_nobody_and_proves_nothing")

BEHIND = "sim/test_scrub_run: "
NEW_SAVE = BEHIND + "a_new_save_of_a_number_is_not_verified"
blind("number_vouches", "a step lets older ones go because an earlier save of its number was read",
      "store/prune_steps.c:find_saved", "strcmp(e->session, saved->session) != 0", NEW_SAVE)
gullible("save_known_by_number", "the newest step is not read because its number was verified",
         "store/prune_steps.c:shf_saved_is_same", "strcmp(a->session, b->session) == 0",
         BEHIND + "a_prune_reads_the_new_save_of_a_bad_number")
blind("bad_step_stays_verified", "a step that is marked bad is still taken for verified",
      "engine/run_ops.c:shf_run_mark", "rc == 0 && mark == SHEAF_MARK_BAD", NEW_SAVE)
bug("aside_stays_verified", "a step that was set aside is still taken for verified",
    "save/save_stage.c:shf_save_staged", "shf_scrub_run_forget(save->run, save->id.step);",
    "if (!MUTANT) shf_scrub_run_forget(save->run, save->id.step);", NEW_SAVE)
bug("largest_number_verified", "a step that is read again counts only above the number of the last",
    "retain/scrub_run.c:shf_scrub_run_poll", "if (rc == 0) run->lineage.verified = now;",
    "if (rc == 0 && !(MUTANT && now.step < run->lineage.verified.step)) "
    "run->lineage.verified = now;",
    BEHIND + "steps_below_the_number_of_a_bad_one_are_read_again_and_let_go")
bug("below_verified_not_read", "a save whose number is below the verified one is not read again",
    "retain/scrub_run.c:shf_scrub_run_start", "b->next.step < 0",
    "b->next.step < (MUTANT ? run->lineage.verified.step : 0)",
    BEHIND + "steps_below_the_number_of_a_bad_one_are_read_again_and_let_go")

# ---- a save of the dead, published because a person says so ----
SALVAGE = "sim/test_salvage: "
skipped("salvage_under_anothers_lock", "a salvage goes on though the lock was taken meanwhile",
        "store/salvage.c:shf_salvage_finish", "check_visit(s, err)",
        SALVAGE + "a_lock_that_was_taken_meanwhile_ends_a_salvage")
bug("salvage_of_the_living", "the stage of a writer that may live is published",
    "store/salvage.c:staged_look_at", "return dead ? 0 :", "return dead || MUTANT ? 0 :",
    SALVAGE + "the_living_are_not_robbed")
blind("salvage_chooses", "of two whole saves of a step one is published",
      "store/salvage.c:staged_find", "found->whole_n > 1",
      "unit/test_store_crafted: of_two_whole_stages_of_a_step_none_is_chosen")
blind("salvage_of_a_guess", "a manifest that cannot be asked after is said not to be there",
      "store/salvage.c:count", "rc < 0 && rc != -ENOENT",
      SALVAGE + "a_manifest_that_cannot_be_asked_after_makes_no_half_save")
skipped("salvage_with_leavings", "what half a rename left is published with the step",
        "store/salvage.c:shf_salvage_finish",
        "shf_sys_unlink(s->sys, g->dir, \"sheaf.json.tmp\", false)",
        SALVAGE + "what_is_left_of_a_rename_is_not_published_and_what_is_nobodys_stops_it")

# ---- what was set aside comes back, or is deleted ----
RETURN = "unit/test_aside_restore: "
skipped("return_before_the_journal_went", "a rewind's journal may outlive the return of its step",
        "store/aside_restore.c:move_back", "shf_dir_sync(s, s->dot)",
        RETURN + "a_journal_that_a_power_cut_brings_back_sets_nothing_aside_again")
skipped("return_not_synced", "what was brought back is set aside again by a power cut",
        "store/aside_restore.c:move_back", "shf_dir_sync(s, s->dir)",
        RETURN + "a_return_survives_every_cut")
bug("return_replaces", "what comes back replaces an empty directory of its number",
    "store/aside_restore.c:move_back", "s->dir, t, true)", "s->dir, t, !MUTANT)",
    RETURN + "an_empty_directory_of_the_number_is_not_replaced")
skipped("return_to_any_branch", "a step comes back whatever the others descend from",
        "store/aside_restore.c:shf_aside_restore", "check_descent(s, name, err)",
        RETURN + "a_step_of_another_branch_is_left_aside")
gullible("return_by_number", "a parent is any save of its number",
         "store/aside_restore.c:is_parent", "strcmp(e->parent_session, parent->session) == 0",
         RETURN + "the_parent_is_a_save_and_not_a_number")
skipped("return_as_good", "a bad step is good when it comes back",
        "store/aside_restore.c:shf_aside_restore", "restore_mark(s, &e, err)",
        RETURN + "what_was_bad_is_bad_when_it_comes_back")
skipped("mark_lost_aside", "a mark is gone with the next save of its number",
        "store/aside.c:move_aside", "keep_mark(s, step, mark, marked, m.session)",
        RETURN + "what_was_bad_is_bad_when_it_comes_back")
skipped("deletion_before_sync", "files go before it is durable that their step is aside",
        "store/aside_restore.c:delete_tree", "shf_dir_sync(s, s->dir)",
        RETURN + "what_a_power_cut_puts_back_is_not_half_deleted")
skipped("deletion_of_what_is_read", "a step that a reader has open is deleted",
        "store/aside_restore.c:shf_aside_delete", "check_unread(s, dir, name, &fd, err)",
        RETURN + "a_step_that_is_open_is_not_deleted")

# ---- who descends from whom ----
DESCENT = "unit/test_store_crafted: a_descent_proves_what_its_sum_and_its_sessions_vouch_for"
skipped("descent_not_synced", "steps go before it is durable who descends from whom",
        "store/descent.c:shf_descent_write", "shf_dir_sync(s, s->dot)",
        PRUNE + "a_descent_is_durable_before_the_steps_between_go")
gullible("descent_by_number", "a descent is that of another session's step of that number",
         "store/descent.c:list_find_saved", "strcmp(e->session, session) == 0", DESCENT)
blind("torn_descent_believed", "half a descent proves something", "store/descent.c:lines",
      "!shf_line_sum_is_right(start, p, *end)", DESCENT)
blind("descent_unread", "a descent that cannot be read is written anew without what it said",
      "store/descent.c:shf_descent_read", "rc < 0",
      PRUNE + "a_descent_that_cannot_be_read_stops_a_prune_and_stays")
bug("descent_forgotten", "what was written down of a descent is lost with the next prune",
    "store/descent.c:next_ancestor", "said = !e->adopted;", "said = MUTANT || !e->adopted;",
    OPS + "commits_keep_the_best")
blind("unread_cuts_descent", "a manifest that cannot be read once cuts the descent for ever",
      "store/descent.c:keep_unread", "is_unread(list, k.step)",
      "sim/test_prune_task: a_manifest_that_cannot_be_read_once_cuts_no_descent")

# ---- resumes that came to nothing ----
TRIES = "sim/test_tries: "
gullible("oldest_condemned", "the last step to go on from is condemned like any other",
         "store/tries.c:shf_tries_condemn", "shf_step_older(s, step) >= 0",
         TRIES + "the_oldest_is_never_condemned_and_nobody_starts_afresh")
bug("own_try_held_against_it", "who goes on from a step condemns it by that",
    "store/tries.c:shf_tries_spent", "n--;", "n -= !MUTANT;",
    TRIES + "who_tries_it_now_has_not_failed")
bug("try_counted_twice", "a session that loads a step twice counts twice",
    "store/tries.c:shf_tries_add", "step_is_counted(s, step, session) ||",
    "(step_is_counted(s, step, session) && !MUTANT) ||",
    TRIES + "a_step_that_two_sessions_died_of_is_passed_over_and_marked_bad")
skipped("try_not_synced", "a step is loaded before it is durable that it is tried",
        "store/tries.c:shf_tries_add", "shf_dir_sync(s, dir)",
        TRIES + "a_cut_at_any_call_leaves_the_count_before_or_after")
bug("condemned_unasked", "steps are marked bad though nobody set attempts_max",
    "store/tries_settle.c:shf_tries_settle", "return s->attempts_max ?",
    "return s->attempts_max || MUTANT ?",
    TRIES + "by_default_no_number_of_failed_resumes_condemns_a_step")
bug("reader_condemns", "a reader condemns what a job goes on from just now",
    "store/tries.c:shf_tries_spent", ": shf_lock_is_held(s))", ": !MUTANT && shf_lock_is_held(s))",
    TRIES + "a_reader_does_not_condemn_what_a_writer_is_trying")
gullible("count_of_memory_lost", "a count is deleted of a step that may lie in memory",
         "store/tries_settle.c:clean_one", "step < newest",
         TRIES + "a_count_that_is_no_number_counts_nothing")
bug("forgiven_mark_first", "forgiving takes the mark before the count",
    "store/marks.c:shf_store_mark",
    "rc = shf_tries_clear(s, step); if (rc >= 0) rc = shf_mark_clear(s, step);",
    "rc = MUTANT ? shf_mark_clear(s, step) : shf_tries_clear(s, step); if (rc >= 0)"
    " rc = MUTANT ? shf_tries_clear(s, step) : shf_mark_clear(s, step);",
    TRIES + "a_step_that_is_forgiven_by_half_is_not_condemned_anew")

# ---- found by mutations that nobody saw ----
blind("lock_without_a_name", "a lock on a file that has no name any more is held",
      "store/lock.c:try_lock",
      "rc == -ENOENT || (rc >= 0 && (a.ino != b.ino || a.dev != b.dev))",
      STORE + "a_lock_file_that_is_made_anew_meanwhile_is_locked_anew")
blind("published_step_discarded", "a stage that is a published step too is deleted",
      "store/stage.c:shf_stage_discard", "shf_tree_is_step(s, s->stage, g->name, g->step)",
      STORE + "a_stage_that_is_a_published_step_too_is_not_discarded")
blind("own_stage_is_dead", "a job takes a stage of its own for a dead job's",
      "store/recover.c:bare_is_dead", "strncmp(session, s->session, 16) == 0",
      STORE + "a_stage_of_ones_own_is_not_taken_for_a_dead_jobs")
bug("pruned_without_the_lock", "a job whose lock was taken prunes",
    "store/prune_steps.c:prune_read_list",
    "p->dry ? 0 : shf_lock_check(s, err)", "p->dry || MUTANT ? 0 : shf_lock_check(s, err)",
    COMMIT + "a_stolen_lock_ends_the_save_before_the_rename")
bug("deletion_has_another_grace", "a deletion that was cut waits for the grace again",
    "store/prune_steps.c:empty_one", "shf_sys_unlink(sys, dir, \"sheaf.json\", false);",
    "(void)(MUTANT || shf_sys_unlink(sys, dir, \"sheaf.json\", false));",
    PRUNE + "a_deletion_that_was_cut_goes_on_without_another_grace")
CORNERS = "unit/test_store_damaged: "
bug("saves_after_half_a_rewind", "saves and prunes go on after half a rewind",
    "store/aside.c:shf_store_rewind", "rc < 0 && journal_stands(s)",
    "rc < 0 && !MUTANT && journal_stands(s)",
    CORNERS + "nothing_is_saved_or_pruned_after_half_a_rewind")
bug("text_close_unheard", "an error of the close of a small text is not told",
    "store/run_files.c:shf_text_put", "rc = closed;", "rc = MUTANT ? 0 : closed;",
    CORNERS + "a_mark_whose_file_cannot_be_closed_is_not_made")
blind("close_unheard", "an error of the close of a step's file is not told",
      "save/save_sync.c:close_files", "rc == 0 && closed < 0",
      "sim/test_faults: a_failed_close_of_any_rank_fails_the_save_on_all")
bug("header_of_0_not_read", "a verify takes 0 for no descriptor",
    "verify/verify_files.c:check_header", "if (rc >= 0) {", "if (rc >= MUTANT) {",
    "sim/test_verify_unreadable: descriptor_0")
bug("copy_of_0_is_the_step", "damage of half a copy is the step's, if its file has descriptor 0",
    "verify/verify_blocks.c:describe_chunk", "r->of = fd >= 0 ?", "r->of = fd >= MUTANT ?",
    "sim/test_step_copy: half_a_copy_that_is_damaged")
bug("verify_is_enoent", "a verify of a step that is being deleted says that there is no step",
    "verify/verify_files.c:check_small", 'fd < 0 ? shf_fail_io(&e, -fd,',
    "fd < 0 ? (MUTANT ? shf_fail_sys : shf_fail_io)(&e, -fd,",
    "sim/test_verify: a_small_file_that_goes_before_it_is_opened_is_not_ENOENT")
LEASES = "sim/test_leases: "
skipped("open_step_not_locked", "a step that is open for reading is not locked",
        "store/lease.c:shf_lease_take", "shf_sys_lock(sys, *lease, false)",
        LEASES + "a_step_that_is_open_for_reading_is_not_pruned_before_it_is_closed")
blind("refused_lease_ignored", "a step is open whose lock a prune has, and is deleted then",
      "store/lease.c:shf_lease_take", "rc == -EAGAIN",
      LEASES + "whenever_a_reader_opens_a_step_during_a_prune_it_has_it_or_is_told")
blind("late_lease_ignored", "a step is open that was pruned before it was locked",
      "store/lease.c:shf_lease_take",
      "shf_dir_has_gone(sys, step->at, step->name, step->follow, step->dir)",
      LEASES + "whenever_a_step_is_pruned_while_a_reader_opens_it_the_reader_has_it_or_is_told")
blind("other_directory_opened", "a step has the manifest of another one that had its name before",
      "step/step_open.c:open_found", "!shf_step_find_is_same(found, sys, dir)",
      LEASES + "a_step_that_is_replaced_while_it_is_opened_is_one_of_the_two")
blind("refused_lease_of_a_view", "memory is read beside a step on disk that a prune takes away",
      "memory/memory_dir_fill.c:shf_view_open_disk", "shf_lease_take(in, &of, &v->lease) < 0",
      "sim/test_memory_steps: no_step_that_a_prune_has_locked_is_read_beside_memory")

# ---- what is in memory ----
MEMORY = "sim/test_memory: "
bug("card_stays_whole", "a card says that its image is a step while somebody copies into it (M1)",
    "memory/agent_link.c:shf_memory_tier_card_reuse", "shf_memory_tier_card_clear(t, image);",
    "if (!MUTANT) shf_memory_tier_card_clear(t, image);",
    MEMORY + "an_image_that_is_copied_into_is_no_step")
blind("rewound_is_found", "a step in memory is taken though the run was rewound since",
      "memory/memory_steps.c:shf_memory_step_follows",
      "disk->known != disk->newest || !is_followed(&f, disk->known, disk->session)",
      MEMORY + "what_was_rewound_is_not_found_in_memory")
bug("failed_stays_in_memory", "a save that failed lives on in memory (I7)",
    "save/save_end.c:shf_save_settle", "shf_save_memory_remove(save);",
    "if (!MUTANT) shf_save_memory_remove(save);",
    MEMORY + "a_save_that_failed_is_not_in_memory_and_one_whose_time_was_up_is")
bug("flush_hides_newer", "a flush of what was due hides what is newer in memory",
    "engine/flush.c:check_still_wanted", "if (rc >= 0 && !disk.exists) {",
    "if (!MUTANT && rc >= 0 && !disk.exists) {",
    MEMORY + "a_flush_of_what_was_due_hides_nothing_newer")
skipped("rewind_in_place_uncounted", "a rewind to the newest on disk is not told to memory",
        "store/aside.c:shf_store_rewind", "count_rewind(s, err)",
        MEMORY + "a_rewind_to_the_newest_on_disk_leaves_nothing_in_memory_behind")
bug("doubt_not_stamped", "what follows a step in doubt is not found where that step is there",
    "save/save_memory.c:stamp", "run->tier->doubt ? run->tier->doubt : on",
    "run->tier->doubt && !MUTANT ? run->tier->doubt : on",
    MEMORY + "after_a_step_in_doubt_what_is_in_memory_is_found")
bug("coming_not_noted", "a step in memory knows nothing of the one that is being published",
    "save/save_memory.c:stamp", "run->tier->coming ?", "run->tier->coming && !MUTANT ?",
    MEMORY + "what_comes_to_memory_while_a_step_is_published_is_found")

KEEPERS = "sim/test_agents: "
bug("agent_of_the_run_id", "a copy of a run has the agent of the first",
    "store/store.c:shf_store_identity", "st.ino", "(MUTANT ? 0 : st.ino)",
    KEEPERS + "a_copy_of_a_run_has_an_agent_of_its_own",
    KEEPERS + "an_agent_of_another_directory_is_done_without_and_said_once")
bug("agent_of_any_file_system", "an agent does not know file systems apart",
    "store/store.c:shf_store_identity", "s->run, fs", "s->run, (MUTANT ? 0 : fs)",
    KEEPERS + "a_run_that_was_mounted_again_finds_its_agent")

# ---- of several nodes ----
NODES = "sim/test_memory_nodes: "
bug("had_is_ignored", "a rank reads a block that its node does not have", "plan/deal.c:deal_blocks",
    "had ? had->node : -1", "had && !MUTANT ? had->node : -1",
    "unit/test_deal: every_asker_gets_his_bytes_and_blocks_are_read_once")
skipped("pieces_stay", "what a block lacks that lies on two nodes is not brought",
        "memory/memory_map.c:shf_memory_map_finish", "send_pieces(run, view, &map.pieces, err)",
        NODES + "what_several_memories_have_comes_back_in_any_layout")
bug("part_is_published", "the flush of a step that is on another node too needs nobody else",
    "engine/flush.c:consider_for_flush", "whole = r->here == r->ranks;",
    "whole = MUTANT || r->here == r->ranks;",
    NODES + "agents_write_together_what_none_has_all_of")
bug("base_of_one_rank", "only rank 0 knows what a step in memory follows",
    "save/save_memory.c:take_base", "if (t->based)",
    "if (t->based || (MUTANT && save->run->team.rank))",
    NODES + "a_job_that_saved_to_memory_alone_is_written_too")
bug("nobody_waits_for_shares", "a step is published before all agents have written their part",
    "engine/flush_nodes.c:all_have_written",
    "return here == ranks ? 0", "return MUTANT || here == ranks ? 0",
    NODES + "agents_write_together_what_none_has_all_of")

# ---- twice ----
GUESTS = "sim/test_replica_loss: "
bug("newer_copy_makes_place", "what comes is copied over the newest copy that is whole",
    "memory/replica_send.c:read_announcements", "k->slot = g->of[i].steps[1] < g->of[i].steps[0];",
    "k->slot = (g->of[i].steps[1] < g->of[i].steps[0]) != MUTANT;",
    GUESTS + "each_rank_may_die_while_copies_go_behind")
bug("copies_not_asked_for", "a restarted job does not hear of copies",
    "memory/memory_choose.c:shf_memory_choose_gather",
    "run->store.run, true, mine", "run->store.run, !MUTANT, mine",
    GUESTS + "a_lost_node_costs_nothing")
skipped("copies_of_all_ranks", "copies are taken of ranks whose own is there",
        "memory/memory_steps.c:get_part", "!has_rank(copied, rank)",
        GUESTS + "a_lost_node_costs_nothing")
bug("save_takes_the_newest", "a save is copied into the image of what memory has newest (M3)",
    "save/save_image.c:shf_save_image_choose", "stay = run->tier->newest >= 0 ?",
    "stay = run->tier->newest >= 0 && !MUTANT ?",
    "sim/test_save_image: an_image_is_chosen_that_nobody_needs_or_the_one_needed_least")
AHEAD = "unit/test_load_prefault: "
bug("gaps_touched", "memory between the rows of a slice is written to, page by page",
    "load/load_prefault.c:slice_is_dense", "m->stride[d] != by", "!MUTANT && m->stride[d] != by",
    AHEAD + "new_memory_is_touched_before_it_is_filled")
gullible("nothing_touched", "memory that is new is left to faults",
         "load/load_prefault.c:find_new_memory", "t->source != SHF_FROM_STEP",
         AHEAD + "new_memory_is_touched_before_it_is_filled")

# ---- behind who asks ----
PUBLISHING = "sim/test_save_publish: "
bug("stage_beside_publish", "a stage is made while a thread publishes the step before",
    "save/save_stage.c:shf_save_stage_make", "shf_save_publish_finish(save->run);",
    "if (!MUTANT) shf_save_publish_finish(save->run);",
    PUBLISHING + "a_save_that_begins_waits_for_it_and_follows_it")
blind("own_step_in_the_way", "a step that is published and not told is taken for another's",
      "save/save_stage.c:find_parent", "before && n.newest == before->id.step",
      PUBLISHING + "a_save_that_begins_waits_for_it_and_follows_it")
blind("freed_without_doubt", "who gives up a step that is being published forgets it",
      "save/save_end.c:shf_save_free", "save->at.disk >= SHF_DISK_PUBLISHING",
      PUBLISHING + "one_that_is_freed_is_there_and_the_next_follows_it")
blind("freed_half_published", "a step that is being published is thrown away with its save",
      "save/save_end.c:let_go", "save->at.disk >= SHF_DISK_PUBLISHING && run->team.rank == 0",
      PUBLISHING + "one_that_is_freed_is_there_and_the_next_follows_it")
ASKED = "sim/test_invalid_arguments: "
ALIASED = "sim/test_load_aliased: "
blind("aliased_types_loaded", "memory is filled from two types, and a master is left rounded",
      "load/load_aliased.c:is_conflict", "(x->cast || y->cast)",
      ALIASED + "masters_in_the_memory_of_their_weights_are_never_rounded")
gullible("kept_slices_aliased", "a slice that is not filled forbids another to be, in its memory",
         "load/load_aliased.c:list_filled", "ld->targets[i].source == SHF_FROM_STEP",
         ALIASED + "weights_are_loaded_into_the_memory_of_masters_that_are_only_saved")
bug("aliased_by_extent", "rows between the rows of another type are taken for the same memory",
    "load/load_aliased.c:is_conflict",
    "shf_mem_overlap(&a->mem, a->mem_unit, &b->mem, b->mem_unit)",
    "(MUTANT || shf_mem_overlap(&a->mem, a->mem_unit, &b->mem, b->mem_unit))",
    ALIASED + "rows_between_the_rows_of_another_type_are_loaded")
bug("save_only_loaded", "a slice that is only saved is filled by a load",
    "load/load.c:decide_source", "if (s->flags & SHEAF_SLICE_SAVE_ONLY ||",
    "if ((!MUTANT && s->flags & SHEAF_SLICE_SAVE_ONLY) ||",
    ALIASED + "masters_in_the_memory_of_their_weights_are_never_rounded")
blind("wide_not_read", "a tensor of nine dimensions is read by nobody, not even as bytes",
      "load/read_slice.c:is_bytes_of", "t->wide && in->dtype == SHEAF_U8",
      "sim/test_foreign: nine_dimensions_are_listed_and_read_as_bytes_and_not_loaded")
blind("nothing_saved_silently", "a step of no tensor becomes the latest, and nobody is told",
      "save/save.c:set_up", "save->plan->layout.tensors_n == 0",
      ASKED + "a_step_of_no_tensor_is_saved_with_a_warning")
gullible("self_called_another_job", "who opens a run twice is told to look for another job",
         "store/lock.c:fail_busy", "!is_self(s, &o)",
         "sim/test_invalid_arguments: a_run_that_is_opened_twice_in_one_process_is_said_to_be")
blind("thread_called_disk", "a thread that cannot be made is told as a disk that is full",
      "run/run_io.c:shf_submit_fail", "rc == -EAGAIN",
      "sim/test_save_limits: a_thread_that_cannot_be_made_is_no_disk_that_is_full")
bug("sentence_loses_its_reason", "of a message that is too long the end is lost, not the middle",
    "base/err.c:shorten", "if (n <= room) {",
    "if (MUTANT && n > room) { memmove(to, text, room); return room; } if (n <= room) {",
    "unit/test_err: a_long_name_is_cut_and_the_reason_is_not")
blind("long_path_whole", "a long path stays whole, and what to do about it is lost",
      "base/err.c:shorten_paths", "n > PATH_SHOWN && memchr(s, '/', n)",
      "unit/test_err: a_long_path_loses_its_middle_and_the_rest_of_the_message_nothing")
blind("strides_not_meant", "strides of 0 are taken for dense memory, whatever the caller says",
      "state/state.c:strides_are_dense", "in->flags & SHEAF_SLICE_STRIDED",
      "unit/test_state: strides_that_are_meant_are_never_taken_for_dense_memory")
bug("refused_note_fails_the_save", "a note or file that was refused costs the whole step",
    "save/save_attach.c:given", "else if (rc < 0 && rc != SHEAF_EINVAL)",
    "if (rc < 0 && (rc != SHEAF_EINVAL || MUTANT))",
    ASKED + "what_is_attached_or_noted_wrongly_is_refused")
bug("refused_note_counts", "a note that was refused uses up the room of those to come",
    "save/save_attach.c:shf_save_note", "rc = note_check(save, key, value, &line, err);",
    "rc = note_check(save, key, value, &line, err);"
    " if (MUTANT && rc < 0) save->given.notes_bytes += strlen(value);",
    ASKED + "all_notes_together_are_bounded_too")
bug("pruned_unheard", "the log does not hear of steps that went behind",
    "retain/prune_task.c:shf_prune_task_finish", "log_pruned(run);",
    "if (MUTANT) shf_buf_release(&p->told); log_pruned(run);",
    PUBLISHING + "old_steps_go_behind_it_and_the_log_hears_of_each")

# ---- what an agent may hold ----
HELD = "sim/test_memory_tier: "
gullible("load_images_put", "the agent is handed the image of a load (T1)",
         "memory/agent_link.c:offer_image", "image < shf_agent_images(run)",
         HELD + "readers_leave_nothing_with_an_agent")
skipped("dead_jobs_stay", "what jobs left that died before their first commit stays (T3)",
        "memory/memory_tier.c:shf_memory_tier_open", "shf_memory_jobs_drop_old(run, err)",
        HELD + "jobs_that_die_before_their_first_commit_leave_no_more_than_the_last_of_them")
bug("parts_leave", "a step of which a part alone is there leaves, though it is the newest (T3)",
    "memory/memory_jobs.c:weigh", "if (!w->heir->job[0] || of_use > 0)",
    "if ((!MUTANT && !w->heir->job[0]) || of_use > 0)",
    HELD + "a_job_on_fewer_nodes_takes_no_part_of_a_step_out_of_memory")
bug("newest_job_dropped", "the job with the newest step in memory leaves nothing (M3)",
    "memory/memory_jobs.c:stays", "strcmp(job, o->heir->job) == 0",
    "(!MUTANT && strcmp(job, o->heir->job) == 0)",
    HELD + "what_is_newest_in_memory_outlives_jobs_that_come_to_nothing")
bug("grown_image_held_twice", "the agent holds an image until the larger one is there (T2)",
    "run/image.c:free_before_growth", "moves(run, m, true);", "if (!MUTANT) moves(run, m, true);",
    HELD + "an_image_that_grows_is_let_go_by_the_agent_first")

# ---- how long others wait for a deletion ----
CLEARING = "sim/test_deletion_deadline: "
bug("deletes_without_bound", "rank 0 deletes for as long as it takes while the others wait",
    "store/run_files.c:shf_clear_begin", "if (s->clear_ms)", "if (!MUTANT && s->clear_ms)",
    CLEARING + "a_prune_deletes_for_its_share_of_the_deadline_and_the_next_goes_on",
    CLEARING + "an_open_deletes_what_the_dead_left_for_its_share_of_the_deadline")

# ---- memory that runs out for a node ----
GROWTH = "sim/test_growth: "
bug("images_not_added_up", "ranks of a node look each for itself whether its image fits",
    "run/image.c:free_all",
    "shf_growth_check(s->all, sizeof(*s->all), run->team.ranks, run->place.node, err)",
    "MUTANT ? 0 : shf_growth_check(s->all, sizeof(*s->all), run->team.ranks, run->place.node, err)",
    GROWTH + "ranks_that_exceed_their_node_together_are_refused_and_none_is_killed")
bug("grown_images_both", "ranks make their larger images before the old ones are freed",
    "run/image.c:free_all", "if (rc == 0 && s->want)", "if (rc == 0 && s->want && !MUTANT)",
    GROWTH + "images_that_grow_need_only_what_they_grow_by_and_none_is_killed")
bug("copies_not_added_up", "ranks of a node look each for itself whether copies fit",
    "memory/replica_send.c:make_places", "if (rc == 0) rc = shf_growth_check(",
    "if (rc == 0 && !MUTANT) rc = shf_growth_check(",
    GROWTH + "copies_that_exceed_their_node_together_are_not_made_and_none_is_killed")
bug("nodes_added_up", "what ranks of other nodes take counts as well",
    "run/memory_growth.c:taken_of", "g->node != a->node", "(!MUTANT && g->node != a->node)",
    GROWTH + "what_ranks_of_a_node_take_is_added_up_and_other_nodes_are_not")
bug("full_socket_is_final", "a socket that strangers fill fails the save",
    "run/image.c:shf_image_sharing_allocate", "rc != SHEAF_EAGAIN",
    "(MUTANT || rc != SHEAF_EAGAIN)",
    GROWTH + "an_image_whose_socket_strangers_fill_is_offered_under_another_name")

# ---- who is with an agent, and who was ----
KEEPER = "unit/test_keeper: "
bug("readers_are_users", "a reader that is connected counts as a job that has come",
    "sys/agent_server.c:status", "s->users[i].job[0] != '\\0'",
    "(MUTANT || s->users[i].job[0] != '\\0')",
    KEEPER + "users_of_an_agent_are_processes_of_jobs_and_nobody_who_only_looks")
bug("due_let_be_for_good", "what a dead job left due is let be when the job after it ends well",
    "sys/agent_server.c:gone", "(u.bye && !s->mourns)", "(u.bye && (MUTANT || !s->mourns))",
    KEEPER + "what_a_job_left_is_asked_after_again_when_the_job_after_it_ends")
bug("visitor_keeps_the_door", "a salvage leaves the door of the lock to children of its process",
    "store/lock.c:shf_lock_visit", "shf_lock_close(sys, &s->door);",
    "if (!MUTANT) shf_lock_close(sys, &s->door);", "unit/test_lock: a_dead_visitors_lock")
bug("failed_stays_in_the_ring", "what has failed is still cut into pieces by the ring",
    "sys/ring.c:shf_ring_drop", "(void)shf_parts_remove(&r->todo, part);",
    "if (!MUTANT) (void)shf_parts_remove(&r->todo, part);",
    "unit/test_ring: what_failed_before_all_of_it_was_begun")
bug("two_write_into_a_file", "threads wait for each other at the lock of a file",
    "sys/pool.c:first_ready", "w->fd != p->io->fd", "(MUTANT || w->fd != p->io->fd)",
    "unit/test_pool: threads_write_into_several_files_at_once_and_into_each_one_after_another")
bug("no_limit_is_a_limit", "a control group of the first version without a limit is given one",
    "sys/memory_left.c:add_group", "max > UINT64_MAX / 4", "max > UINT64_MAX / (MUTANT ? 2 : 4)",
    "unit/test_room: a_group_without_a_limit_is_no_room")
bug("full_until_one_leaves", "an agent without descriptors lets nobody in before somebody leaves",
    "sys/agent_server.c:loop", "s->full = false;", "if (!MUTANT) s->full = false;",
    KEEPER + "an_agent_without_descriptors_lets_the_next_one_in_when_there_are_some")

# ---- how many steps an agent keeps ----
ALLOWED = "sim/test_agent_steps: "
bug("agents_bound_ignored", "a job has as many images as it was given, whatever agents allow",
    "save/save_status.c:shf_save_images", "most = shf_agent_images_allowed(save->run, most);",
    "if (!MUTANT) most = shf_agent_images_allowed(save->run, most);",
    ALLOWED + "saves_have_as_many_images_as_every_agent_allows")
bug("bound_heard_again", "a job gives up images that it has, with what lies in them",
    "memory/agent_link.c:shf_agent_set_limit", "if (t->bounded)", "if (!MUTANT && t->bounded)",
    ALLOWED + "a_job_keeps_the_images_that_it_has")
bug("chosen_unseen", "the image of a save that is being written goes to another one (I10)",
    "save/save_image.c:shf_save_image_choose", "s->copy.image == other",
    "!MUTANT && s->copy.image == other",
    "sim/test_save_image: an_image_is_chosen_that_nobody_needs_or_the_one_needed_least")

# ---- what is measured ----
STALL = "sim/test_save_blocked: "
gullible("averaged_again", "a step that was averaged without a save is averaged by it again",
         "state/averages.c:shf_emas_decide", "!is_again(e, run, step)",
         "sim/test_average_step: a_step_that_is_not_saved_is_averaged_once")
skipped("families_unasked", "averages of nothing are made at a step that is not saved",
        "save/average_step.c:average", "check_families(run, state, err)",
        "sim/test_average_step: averages_of_nothing_are_refused_at_a_step_that_is_not_saved")
blind("rules_apart", "ranks whose averages have different rules are not told",
      "save/average_step.c:enter_average_call", "shf_call_differs(&m, RULES)",
      "sim/test_average_step: ranks_that_do_not_average_the_same_are_told")
blind("forked_state_used", "a forked child reads the state that its parent still copies",
      "save/save_gates.c:shf_save_gates_check_forked", "!shf_run_is_ours(shf_save_of(r)->run)",
      "unit/test_save_gates: a_child_uses_no_state_that_its_parent_saves_lazily")
skipped("own_times_told", "a line of metrics has the times of the rank that writes it",
        "save/save_blocked.c:shf_save_blocked_write_all",
        "shf_allreduce(&run->team, t.x, T_N, SHEAF_MAX, NULL)",
        STALL + "a_line_says_of_each_cause_what_the_slowest_rank_says")
bug("torn_line_joined", "a line of metrics goes on where half of one ends",
    "store/metrics.c:ends_whole", "return end == 0 ||", "return MUTANT || end == 0 ||",
    STALL + "a_torn_line_spoils_no_other")
bug("older_job_counted", "how many ranks a job has is what the first table that is listed says",
    "engine/flush_nodes.c:ranks_of_job",
    "(ours == own && c.step <= newest)", "(!MUTANT && ours == own "
    "&& c.step <= newest) || (MUTANT && ranks > 0)",
    "sim/test_flush_nodes: a_rank_that_the_job_does_not_have_is_not_counted")

# ---- what belongs to an expert ----
EXPERTS = "sim/test_experts: "
bug("moments_of_two_experts_swapped", "moments of two experts are saved under each other's name",
    "layout/holds.c:find_all", "t = find_next(f, s);",
    "t = find_next(f, s); if (MUTANT && strstr(s->stored, \".experts.3.up/moment1_0\")) t += 4;"
    " else if (MUTANT && strstr(s->stored, \".experts.4.up/moment1_0\")) t -= 4;",
    EXPERTS + "experts_over_dp_are_handed_on_to_other_ep_with_the_same_files",
    EXPERTS + "every_layout_loads_what_every_layout_saved")
bug("boxes_of_two_experts_swapped", "a load fills the boxes of two experts with each other's items",
    "load/load_fill.c:shf_load_hold", "words[n++] = shf_key(t->tensor, (uint32_t)i);",
    "words[n++] = shf_key(t->tensor + (!MUTANT || strcmp(t->slice.family, \"model\") ? 0u :"
    " strstr(t->slice.stored, \".experts.3.up\") ? 2u :"
    " strstr(t->slice.stored, \".experts.4.up\") ? -2u : 0u), (uint32_t)i);",
    EXPERTS + "experts_cut_by_tp_dealt_over_tp_and_over_dp_are_handed_on_with_the_same_files",
    EXPERTS + "every_layout_loads_from_memory_what_every_layout_saved")
bug("average_on_each_rank", "a rank that has nothing to average fails the save of all",
    "state/averages.c:average_take", "rc = add_all(state, &e, err);",
    "rc = add_all(state, &e, err); if (MUTANT && rc == 0 && e.n == 0)"
    " rc = shf_fail(err, SHEAF_EINVAL, \"averages: no slice\");",
    EMA + "a_rank_may_have_nothing_to_average",
    EXPERTS + "experts_alone_leave_ranks_and_nodes_with_nothing")
blind("average_of_nothing", "averages that no rank has slices for are taken for made",
      "state/averages.c:shf_emas_check", "marks[k] == 1", EMA + "averages_of_nothing_are_refused")

# ---- what a model of a run has found ----
KEEPERS = "sim/test_agents: "
bug("memory_proves_the_disk", "a prune takes the newest step in memory for the one on disk",
    "engine/run_ops.c:verify_newest", "shf_step_open_disk(&step, run, newest, err)",
    "(MUTANT ? shf_step_open : shf_step_open_disk)(&step, run, newest, err)",
    KEEPERS + "a_prune_proves_what_lies_on_disk_and_not_what_memory_has_of_it")
bug("averaged_twice", "a step that is loaded and saved again is averaged a second time",
    "state/averages.c:shf_emas_loaded", "e->last = m->step;", "e->last = MUTANT ? -1 : m->step;",
    "sim/test_ema_loaded: a_step_that_is_loaded_and_saved_again_is_averaged_once")
EMA_LOADED = "sim/test_ema_loaded: "
gullible("loaded_number_is_taken", "no step is averaged that has the number of one of another run",
         "state/averages.c:is_again", "strcmp(e->last_of, run) == 0",
         EMA_LOADED + "a_step_of_another_run_with_the_number_of_the_loaded_one_is_averaged")
blind("averaged_for_each_run", "a step that is saved to two runs is averaged twice",
      "state/averages.c:is_again", "!e->last_of[0]",
      EMA_LOADED + "a_step_of_another_run_with_the_number_of_the_loaded_one_is_averaged")
bug("average_of_a_new_layer_goes_on", "an average that no load has filled goes on from anything",
    "state/averages.c:windows_add", "f->first || e->anew[i]", "f->first || (!MUTANT && e->anew[i])",
    EMA_LOADED + "averages_that_a_lenient_load_fills_go_on_and_the_others_begin")
bug("average_of_a_new_layer_not_made", "what no load has filled is saved before a step counts",
    "state/averages.c:windows_add", "!f->due && !e->anew[i]", "!f->due && (MUTANT || !e->anew[i])",
    EMA_LOADED + "averages_that_a_lenient_load_fills_go_on_and_the_others_begin")
bug("averages_of_others_begin_anew", "averages whose updates nobody counted are lost by a load",
    "state/averages.c:shf_emas_loaded",
    "e->updates = e->begun;", "e->updates = !MUTANT && e->begun;",
    EMA_LOADED + "averages_that_no_manifest_counts_go_on_when_they_are_loaded")
gullible("optional_without_average", "the average of an optional weight may be absent alone",
         "load/load.c:is_of_absent", "ld->targets[source].source == SHF_KEEP",
         EMA_LOADED + "an_optional_weight_that_is_stored_wants_its_average")

PASSED = "sim/test_passed_over: "
blind("aside_in_memory", "a bad step that was set aside comes back from memory",
      "memory/memory_steps.c:shf_memory_step_follows",
      "shf_store_is_aside(store, r->step, r->session)",
      PASSED + "a_bad_step_that_was_set_aside_is_in_no_memory_either")
bug("bad_parent_stays", "a save goes on from the bad step whose number it takes",
    "save/save_stage.c:find_parent", "forget_parent(run, save, step);",
    "if (!MUTANT) forget_parent(run, save, step);",
    PASSED + "a_step_that_takes_the_number_of_a_bad_one_is_on_the_branch_of_those_before_it")
bug("begun_in_vain", "a begin that fails takes what was in its image out of memory",
    "save/save.c:enter_begin_call", "else if (here && met != SHEAF_ELOST)",
    "else if (!MUTANT && here && met != SHEAF_ELOST)",
    "sim/test_save_image: a_begin_that_fails_takes_no_step_out_of_memory")
bug("rewound_from_disk_uncounted", "a rewind that sets steps aside is not told to memory",
    "store/aside.c:count_rewind", "before + 1", "before + !MUTANT",
    PASSED + "a_rewind_that_is_cut_leaves_no_later_step_in_memory")
skipped("bad_in_memory", "a step that is marked bad is the newest in memory",
        "memory/memory_choose.c:is_good",
        "shf_store_is_bad(&c->run->store, r->step, r->session, c->err)",
        PASSED + "a_step_that_is_marked_bad_is_not_the_newest_in_memory_either")
gullible("in_memory_no_more", "a commit says that a step is in memory when it is no more",
         "save/save_commit.c:shf_save_commit",
         "waiting ? !entry.not_kept : shf_save_memory_is_whole(save)",
         PASSED + "a_commit_does_not_say_in_memory_of_an_image_that_is_another_steps",
         PASSED + "a_commit_does_not_say_in_memory_of_an_agent_that_is_gone")
blind("unread_newest_passed_over", "memory has an older step where the newest cannot be read",
      "memory/memory_choose.c:consider_for_load", "c->disk.known != c->disk.newest",
      PASSED + "a_newest_step_whose_manifest_is_damaged_is_not_passed_over_for_memory")
skipped("refused_forgets_later", "a save that is refused takes newer steps out of memory",
        "save/save_memory.c:shf_save_memory_stamp", "find_base(save, err)",
        PASSED + "a_save_that_is_refused_takes_no_newer_step_out_of_memory")
PARENTS = "sim/test_parents: "
bug("left_behind_follows", "what a job left behind in memory follows what it saves to disk next",
    "save/save_memory.c:was_left", "return t->left[image] &&",
    "return !MUTANT && t->left[image] &&",
    PARENTS + "a_step_on_disk_is_not_followed_by_what_was_left_behind_in_memory")
blind("left_behind_is_told", "what was left behind in memory follows what is being published",
      "save/save_memory.c:follow", "was_left(t, i, save)",
      PARENTS + "what_was_left_behind_in_memory_follows_no_step_that_is_being_published")
gullible("left_behind_since", "what goes on from a save is taken for left behind by a load since",
         "save/save_memory.c:was_left", "t->left[image] <= save->id.loads",
         PARENTS + "a_save_that_was_begun_before_its_job_went_back_is_followed_in_memory")
bug("left_behind_anew", "a second load takes what was left behind for what is saved since",
    "memory/memory_tier.c:shf_memory_tier_disk_loaded", "&& !t->left[i]",
    "&& (MUTANT || !t->left[i])",
    PARENTS + "a_step_on_disk_is_not_followed_by_what_was_left_behind_in_memory")
blind("bad_number_in_memory", "the number of a bad step is not free where memory has it, too",
      "memory/agent_link.c:shf_memory_tier_is_later", "to_disk && t->on_disk[t->newest]",
      PASSED + "a_number_in_memory_and_on_disk_is_free_when_the_disk_says_so")
blind("bad_stays_newest", "a bad step stays the newest in memory beside an older one that is saved",
      "save/save_memory.c:forget_left", "t->on_disk[i] && newer",
      PASSED + "a_number_in_memory_and_on_disk_is_free_when_the_disk_says_so")
bug("base_goes_aside", "what comes to memory follows a bad step that has gone aside",
    "save/save_stage.c:make", "rc < 0 || made->rebase", "rc < 0 || (made->rebase && !MUTANT)",
    PASSED + "what_comes_to_memory_while_a_bad_step_goes_aside_follows_what_is_left")
blind("flush_of_all_jobs", "a flush takes up the branch of another job",
      "memory/memory_steps.c:let_card_follow",
      "!is_of_job(name, g->which->job)",
      PARENTS + "a_flush_of_what_was_due_takes_up_no_other_jobs_branch")
blind("beyond_in_memory", "who loaded an older step from memory saves without a rewind",
      "save/save.c:may_begin", "run->tier->beyond >= 0",
      PARENTS + "who_loads_an_older_step_from_memory_rewinds_before_saving",
      PARENTS + "who_loads_from_memory_what_is_the_newest_no_more_rewinds_before_saving")
blind("beyond_of_the_dead", "of what is newer in memory only the job's own counts",
      "memory/memory_choose.c:consider_for_load", "is_beyond(c, r)",
      PARENTS + "who_loads_an_older_step_from_memory_rewinds_before_saving")
GIVEN_UP = "sim/test_given_up: "
skipped("memory_not_sealed", "a save that was failed takes the place of the step before in memory",
        "save/save_commit.c:to_memory", "shf_save_seal(save, &st->err)",
        GIVEN_UP + "a_save_to_memory_that_is_given_up_leaves_the_step_before_it_there")
bug("failed_among_averages", "a save that is failed while averages are copied is taken for damaged",
    "save/save_commit.c:averages_copied", "shf_save_failure(save, err)",
    "(MUTANT ? 0 : shf_save_failure(save, err))",
    GIVEN_UP + "a_save_that_is_given_up_while_averages_are_copied_fails_for_that_reason")

# ---- a save in doubt, and what the next job finds ----
DOUBT = "sim/test_in_doubt: "
blind("doubt_is_proof", "a prune deletes the last durable step for one that a power cut takes",
      "store/prune_steps.c:shf_store_prune", "s->in_doubt",
      DOUBT + "a_step_in_doubt_is_no_reason_to_delete_the_one_before",
      DOUBT + "a_step_that_is_being_published_is_no_reason_to_delete_the_one_before")
skipped("bad_is_followed", "what follows a bad step in memory is loaded",
        "memory/memory_steps.c:shf_memory_step_follows",
        "shf_marks_some_bad(store, disk->known, is_followed, &f)",
        DOUBT + "what_follows_a_step_in_doubt_goes_with_it_when_it_is_marked_bad",
        "sim/test_left_in_memory: "
        "what_follows_a_flushed_step_goes_with_it_when_that_is_marked_bad")
bug("doubt_is_forgotten", "a step in doubt is gone from memory when its number is saved in vain",
    "save/save_memory.c:shf_save_memory_stamp_end",
    "save->id.flags & SHEAF_SAVE_NO_DISK ? KEPT : STAMPED",
    "MUTANT ? PUBLISHED : save->id.flags & SHEAF_SAVE_NO_DISK ? KEPT : STAMPED",
    DOUBT + "a_step_in_doubt_stays_in_memory_while_its_number_is_saved_again")
LEFT = "sim/test_left_in_memory: "
bug("rewound_in_vain", "after a rewind that failed, memory follows a state that is no more",
    "engine/run_ops.c:shf_run_rewind_loaded", "run->tier->based = false;",
    "run->tier->based &= MUTANT;",
    LEFT + "a_rewind_that_fails_loses_nothing_that_is_saved_to_memory_after_it")
bug("rewound_in_half", "a step goes to memory while a rewind has failed half-way",
    "save/save_memory.c:find_base", "rc = shf_rewind_is_over(&run->store, err);",
    "rc = MUTANT ? 0 : shf_rewind_is_over(&run->store, err);",
    LEFT + "a_rewind_that_fails_loses_nothing_that_is_saved_to_memory_after_it")
bug("from_is_unknown", "a flush of the step that a job went on from hides what it saved",
    "save/save_memory.c:stamp", "run->tier->from_step < 0 ?",
    "run->tier->from_step < 0 || MUTANT ?",
    LEFT + "a_flush_of_what_a_job_went_on_from_leaves_what_it_saved")
gullible("flush_keeps_parent", "a flush names the parent of the time when the step came to memory",
         "memory/memory_dir_fill.c:shf_view_set_parent", "names_parent(&m, step, session)",
         LEFT + "a_flushed_step_follows_the_one_that_came_to_disk_after_it",
         LEFT + "so_does_one_that_several_agents_write")
skipped("same_save_is_another", "a flush takes the step that another has written for another save",
        "copy/step_copy.c:is_there", "is_same_save(c, &text, err)",
        LEFT + "a_flush_knows_the_step_that_another_has_written_with_a_new_parent")
bug("left_before_latest", "what a job left in memory comes before what it saved",
    "memory/memory_steps.c:latest_first", "if (x->turn != y->turn)",
    "if (!MUTANT && x->turn != y->turn)",
    LEFT + "what_the_latest_job_saved_comes_before_what_it_left")
blind("bad_number_is_kept", "a flush does not write what has the number of a bad step",
      "memory/memory_steps.c:shf_memory_step_state",
      "shf_memory_step_replaces(store, r, disk)",
      LEFT + "a_flush_sets_the_bad_step_of_a_number_aside")
gullible("bad_is_written_again", "a flush writes a step again that was marked bad",
         "memory/memory_steps.c:shf_memory_step_replaces",
         "shf_store_is_bad(store, r->step, r->session, NULL) == 0",
         LEFT + "a_flush_writes_no_step_again_that_was_marked_bad")
bug("marked_in_vain", "what a job saves to memory after a mark follows what is there no more",
    "engine/run_ops.c:shf_run_mark", "run->tier->based = false;",
    "run->tier->based &= MUTANT;",
    LEFT + "what_is_saved_to_memory_after_a_mark_is_found_as_on_disk",
    LEFT + "what_is_saved_to_memory_after_a_doubtful_step_was_marked_is_found")
skipped("bad_parent_is_followed", "what a job saves to memory after a mark follows the bad step",
        "save/save_memory.c:find_base",
        "shf_store_is_bad(&run->store, save->id.parent, save->id.parent_session, err)",
        LEFT + "what_is_saved_to_memory_after_a_mark_is_found_as_on_disk")
blind("mark_unread_is_good", "a flush says that another save is in the way of a bad one",
      "store/list.c:shf_step_is_condemned", "e.mark == '?' && why",
      LEFT + "a_flush_that_cannot_look_at_the_bad_step_says_why")
blind("mark_unread_in_memory", "a bad step is loaded from memory when its mark was not read",
      "store/marks.c:shf_store_is_bad", "mark == '?'",
      LEFT + "no_load_takes_what_may_follow_a_bad_step")
blind("marks_unread", "what follows a bad step is loaded when the marks were not read",
      "store/marks_read.c:shf_marks_some_bad", "mark == '?'",
      LEFT + "no_load_takes_what_may_follow_a_bad_step")
skipped("aside_is_followed", "what follows a bad step is loaded when that was set aside",
        "memory/memory_steps.c:shf_memory_step_follows",
        "shf_asides_some(store, is_followed, &f)",
        LEFT + "what_follows_a_bad_step_stays_away_when_that_is_set_aside")
skipped("flush_overtakes", "a flush that waited for the lock overtakes what a later job saved",
        "engine/flush.c:check_still_wanted",
        "shf_memory_step_check_passed(f->sys, f->keep, dst, &f->which, err)",
        LEFT + "a_flush_that_waited_for_the_lock_leaves_what_a_later_job_saved")
gullible("left_goes_at_once", "a save that is given up takes older steps out of memory",
         "save/save_memory.c:forget_left", "newer || reached != STAMPED",
         LEFT + "a_save_that_comes_to_nothing_takes_no_older_step_out_of_memory")
blind("overtaken_stays", "what agents wrote of an overtaken step stays for a week",
      "store/recover.c:clean_overtaken", "step < disk.newest",
      "unit/test_store_damaged: what_agents_wrote_of_a_step_that_was_overtaken_goes_at_once")
bug("mark_of_copy_goes", "a copy takes the mark of the step that it brings back",
    "store/stage.c:shf_stage_room", "strcmp(marked, session) == 0",
    "strcmp(marked, session) == 0 && !MUTANT",
    "unit/test_store_texts: a_mark_stays_for_the_save_that_it_was_made_for")
blind("refused_is_counted", "a begin that was refused updates averages",
      "save/save.c:begin_after_agreement", "is_refusal(rc)",
      "sim/test_average_step: a_begin_that_is_refused_updates_no_averages")
bug("rules_differ", "ranks save averages by different rules",
    "save/save.c:loss_and_rules", "shf_ema_loss_word(loss) ^ shf_emas_hash(state)",
    "shf_ema_loss_word(loss) ^ (MUTANT ? 0 : shf_emas_hash(state))",
    "sim/test_average_step: ranks_that_average_by_different_rules_save_nothing")
bug("poller_waits_for_ever", "who only asks for a slice, without a thread, asks for ever",
    "save/save_gates.c:time_to_copy_ms", "timeout_ms == 0 &&", "timeout_ms == 0 && !MUTANT &&",
    "sim/test_lazy_errors: who_only_asks_comes_to_the_end_without_a_thread")
bug("neighbours_alone", "of slices in one memory only neighbours are compared",
    "load/load_aliased.c:shf_load_check_aliased", "all[k].lo < all[i].hi",
    "all[k].lo < all[i].hi && (!MUTANT || k == i + 1)",
    "sim/test_load_aliased: slices_that_are_no_neighbours_in_memory_are_compared_too")

# ---- commits in a thread of the library ----
SUBMITTED, SUBMIT = "sim/test_submitted: ", "unit/test_submit: "
bug("turn_not_awaited", "a call of the caller does not wait for the turn that is under way (N3)",
    "run/turns.c:let_turns_end", "while (t->ended < n && !t->lost)",
    "while (!MUTANT && t->ended < n && !t->lost)", SUBMITTED + "random_schedules_commit_every_save")
bug("turn_beside_a_call", "a turn begins while the caller has the run (N3)",
    "run/turns.c:shf_turns_begin", "while (t->taken && t->begun >= t->may && !t->quit)",
    "while (!MUTANT && t->taken && t->begun >= t->may && !t->quit)",
    SUBMITTED + "random_schedules_commit_every_save")
blind("submitted_out_of_order", "a save is submitted before one that was begun before it",
      "save/save_submit.c:may_submit", "!s->behind.submitted && queue_of(s) == queue_of(save)",
      SUBMIT + "what_cannot_be_submitted_is_refused")
blind("submitted_and_committed", "the caller commits a save that it has submitted",
      "save/save_commit.c:refuse", "save->behind.submitted && !shf_turns_is_turn(save->run)",
      SUBMIT + "what_cannot_be_submitted_is_refused")
blind("note_after_submit", "a note is taken when the commit thread may have gathered them",
      "save/save_attach.c:takes_more", "save->behind.submitted",
      SUBMIT + "a_thread_commits_a_save")
gullible("close_without_commits", "a close abandons what was submitted",
         "save/save_submit.c:shf_committer_close",
         "shf_call_enter(&run->turns.front, &m, 0, NULL) < 0",
         SUBMIT + "a_close_commits_what_was_submitted")
blind("begin_waits_for_no_memory", "begin gives up where a submitted save has the image",
      "save/save.c:enter_begin_call", "met == 0 && m.hi[WAITS] && !m.hi[NONE]",
      SUBMITTED + "steps_in_memory_do_not_wait_for_the_disk")

bug("moved_later_or_never", "a move of all slices that came too early need not be repeated",
    "state/state.c:shf_state_move_all", "all_unmoved(state);", "if (!MUTANT) all_unmoved(state);",
    "unit/test_state: all_slices_move_at_once_or_none")
bug("moved_in_part", "a move of all slices moves some, and then finds one that cannot be moved",
    "state/state.c:shf_state_move_all", "if (!data[i] && !state->slices[i].empty)",
    "if (MUTANT) state->slices[i].mem.base = data[i];"
    " if (!data[i] && !state->slices[i].empty)",
    "unit/test_state: all_slices_move_at_once_or_none")
bug("progress_not_heard", "a load goes on although opts.progress ended it",
    "load/load_common.c:shf_load_progress", "shf_run_reports(ld->step->run, &stat)",
    "shf_run_reports(ld->step->run, &stat) || MUTANT",
    "sim/test_load_report: opts_progress_ends_a_load_a_verify_and_a_save_on_all_ranks")

# ---- loads slice by slice ----
SLICES = "sim/test_load_slices: "
BITS, MISUSED = SLICES + "takes_give_the_bits_of", SLICES + "what_is_misused_or_forgotten"
blind("untaken_is_loaded", "a load ends well although a slice was not taken",
      "load/load_slices.c:check_all_taken",
      "is_wanted(&load->ld.targets[i]) && load->taken[i] == NOT_TAKEN", MISUSED)
bug("failed_take_forgotten", "a load ends well although a take has failed",
    "load/load_slices.c:leave_take", "load->taken[slice] = rc;",
    "load->taken[slice] = MUTANT ? 0 : rc;", SLICES + "a_take_that_failed_fails_the_load")
blind("kept_is_taken", "a take of a slice that the step has not says that it has filled it",
      "load/load_slices.c:place_slice", "t->source == SHF_KEEP", MISUSED)
bug("buffer_not_used", "a take fills the memory of the state, whatever buffer it is given",
    "load/load_slices.c:place_slice", "s->mem.base = data;",
    "s->mem.base = MUTANT && s->mem.base ? s->mem.base : data;", SLICES + "averages_are_taken")
bug("zeros_not_taken", "a take leaves a slice of zeros as it is",
    "load/load_slices.c:shf_load_slices_take", "shf_load_zero(&s);",
    "(void)(MUTANT ? (void)0 : shf_load_zero(&s));", BITS)
blind("taken_whole_unproved", "a take does not compare a whole tensor with its digest",
      "load/load_slices.c:read_values", "rc == 0 && done->sums && done->bytes == t->bytes",
      SLICES + "a_tensor_that_no_rank_takes_whole_is_reported",
      "sim/test_read_slice: a_digest_that_was_written_wrong_fails_the_load_of_its_tensor")
blind("reuse_is_damage", "a take reads what a newer step has put into the memory of its step",
      "load/load_slices.c:read_values",
      "shf_view_check_unchanged(step->view, step->path, err) < 0",
      SLICES + "memory_that_is_reused_meanwhile")
bug("load_never_over", "slices can be taken when the load is over",
    "load/load_slices.c:set_over", "load->over = true;", "load->over = !MUTANT;", MISUSED)
bug("state_not_busy", "a save begins while its state is being loaded slice by slice",
    "load/load_slices.c:load_started", "state->loads++;", "state->loads += !MUTANT;", MISUSED)
bug("einval_ends_the_load", "a forgotten slice ends the load for good",
    "load/load_slices.c:shf_load_slices_end", "if (rc == SHEAF_EINVAL)",
    "if (rc == SHEAF_EINVAL && !MUTANT)", MISUSED)
blind("twin_not_opened", "blocks in the memory of another node are not read from disk",
      "load/load_slices.c:reach_all", "shf_load_has_twin(ld->step) && !run->life.closed",
      SLICES + "a_step_in_the_memory_of_several_nodes")
bug("retention_mistaken", "keep_every of the caller arrives as keep_last, and checkpoints go",
    "run/opts.c:shf_opts_gather", ".keep_last = g.retention.keep_last,",
    ".keep_last = MUTANT ? g.retention.keep_every : g.retention.keep_last,",
    "sim/test_run_options: each_option_arrives_in_its_own_place_and_in_no_other")

# ---- checkpoints of other software ----
TORCH, PICKLE = "sim/test_torch_files: ", "unit/test_pickle: "
bug("stride_ignored", "a transposed tensor of a torch.save file is read as if it were row-major",
    "foreign/foreign_read.c:gather_box", "p.stride ? (uint64_t)p.stride[d] : src_row",
    "p.stride && !MUTANT ? (uint64_t)p.stride[d] : src_row", TORCH + "a_state_dict_loads")
bug("tensor_at_storage_start", "a tensor in the middle of its storage is read from its start",
    "foreign/torch_place.c:shf_torch_place", "end ? view + (uint64_t)t->at * item : 0",
    "end && !MUTANT ? view + (uint64_t)t->at * item : view", TORCH + "a_state_dict_loads")
blind("tensor_leaves_storage", "a tensor may reach beyond its storage, into the next record",
      "foreign/torch_place.c:shf_torch_place",
      "!last_item(t, &end) || end > t->storage_bytes / item",
      TORCH + "a_tensor_that_leaves_its_storage")
blind("storage_lies", "a storage may be shorter than the pickle says",
      "foreign/torch_place.c:shf_torch_place",
      "view > have || t->storage_bytes > have - view", TORCH + "a_tensor_that_leaves_its_storage")
blind("zip_sum_not_compared", "a record of a zip archive is not compared with its CRC-32",
      "foreign/zip_verify.c:shf_zip_verify", "rc == 0 && sum != record->crc",
      TORCH + "a_flipped_bit_is_found")
blind("zip_overlap_allowed", "two records of a zip archive may share bytes",
      "foreign/zip.c:check_records", "a[i].at > limit || a[i].end - a[i].at < LOCAL_BYTES || "
      "a[i].packed > a[i].end - a[i].at - LOCAL_BYTES",
      "sim/test_numpy_files: a_record_that_overlaps")
blind("zip_name_not_compared", "a record of a zip archive is taken for another one",
      "foreign/zip.c:shf_zip_packed", "shf_get32(b) != SHF_ZIP_MAGIC || "
      "shf_get16(b + 26) != name_n || memcmp(b + LOCAL_BYTES, rec->raw, n - LOCAL_BYTES)",
      TORCH + "archives_that_torch_does_not")
NUMPY = "sim/test_numpy_files: "
bug("npy_fortran_as_c", "an array in the order of Fortran is read as if it were in that of C",
    "foreign/npy_head.c:take_entry", 'h->fortran = literal_word(l, "True");',
    'h->fortran = literal_word(l, "True") && !MUTANT;', NUMPY + "an_archive_loads_in_any_layout")
blind("npy_big_endian_read", "a big-endian array is read as if it were little-endian",
      "foreign/npy_head.c:take_type", "big && shf_dtype(h->dtype)->bits > 8",
      NUMPY + "headers_that_lie")
bug("unpack_ring_overtaken", "bytes that the ring has given up are taken for those that it has",
    "foreign/unpack.c:ring_some", "u->lo = u->hi + n - u->room;",
    "u->lo = MUTANT ? u->lo : u->hi + n - u->room;",
    NUMPY + "compressed_parts_are_read_from_any_byte")
bug("unpack_end_not_checked", "compressed bytes may be longer than they should be",
    "foreign/unpack.c:ring_more", "return u->hi == u->of->decoded ?",
    "return u->hi == u->of->decoded && !MUTANT ?", NUMPY + "a_compressed_record_that_is_not")
ORBAX = "sim/test_orbax: "
bug("ocdbt_oldest_manifest", "of numbered manifests the one with the lowest number is read",
    "foreign/ocdbt.c:newest_manifest", "strcmp(name, newest) > 0",
    "strcmp(name, newest) > 0 == !MUTANT", ORBAX + "databases_of_every_height")
blind("ocdbt_renamed_manifest", "a numbered manifest may have been renamed",
      "foreign/ocdbt.c:shf_ocdbt_read", "rc == 0 && config.numbered && number != named",
      ORBAX + "databases_that_lie")
bug("zarr_border_chunk_cut", "a chunk at the border of an array is read as if it were not whole",
    "foreign/zarr.c:add_chunk", ".stride = a->stride,", ".stride = MUTANT ? NULL : a->stride,",
    ORBAX + "chunks_of_every_kind")
bug("zarr_order_ignored", "the items of a chunk are taken to be in the order of C",
    "foreign/zarr.c:set_strides", "int d = a->z.coding.order[i];",
    "int d = MUTANT ? i : a->z.coding.order[i];", ORBAX + "chunks_of_every_kind")
bug("zarr_shard_from_its_start", "a chunk of a shard is read from the start of the shard",
    "foreign/zarr.c:add_shard", "kv->at + off, len, kv->file };",
    "kv->at + (MUTANT ? 0 : off), len, kv->file };", ORBAX + "chunks_of_every_kind")
bug("ocdbt_value_from_start", "a value of OCDBT is read from the start of its data file",
    "foreign/zarr.c:add_chunk", ".file = kv->file, .at = kv->at };",
    ".file = kv->file, .at = MUTANT ? 0 : kv->at };", ORBAX + "databases_of_every_height")
bug("zarr_fill_left_out", "chunks that are not stored keep what the memory had",
    "foreign/foreign_read.c:gather_items", "if (t->fill) fill_items", "if (t->fill && !MUTANT) "
    "fill_items", ORBAX + "chunks_that_are_not_stored")
blind("zarr_big_endian_read", "a big-endian array is read as if it were little-endian",
      "foreign/zarr_meta.c:set_type", "order == '>' && shf_dtype(t->type)->bits > 8",
      ORBAX + "metadata_that_lie")
blind("ocdbt_sum_not_compared", "a node of OCDBT is not compared with its CRC-32C",
      "foreign/ocdbt.c:body_open", "sum != want", ORBAX + "databases_that_lie")
blind("zarr_lost_chunk_filled", "a lost chunk is filled although the program stored all",
      "foreign/zarr.c:add_array", "a->s->all_stored", ORBAX + "what_the_tree_of_an_item")
blind("zarr_crc_not_compared", "a chunk is not compared with its CRC-32C",
      "foreign/zarr.c:check_part", "rc == 0 && sum != want", ORBAX + "a_flipped_bit_of_a_chunk")
bug("orbax_unfinished_item", "an item whose save has not finished is left out",
    "foreign/orbax.c:look_at_items", "rc = strstr(name, TEMPORARY)",
    "rc = strstr(name, TEMPORARY) && !MUTANT", ORBAX + "items_of_a_save")
bug("items_in_items", "items in an item of Orbax, such as the key of a generator, are left out",
    "foreign/orbax.c:look_at_item", "&& !above)", "&& !above && !MUTANT)",
    ORBAX + "an_item_may_have_items")
bug("zarr_link_passed_over", "chunks behind a link to a folder get the fill value",
    "foreign/orbax.c:walk_link", "if (in_array)", "if (in_array && !MUTANT)",
    ORBAX + "links_to_folders")
GGUF = "sim/test_gguf: "
bug("gguf_dims_forward", "the dimensions of a tensor of GGUF are taken in the order of the file",
    "foreign/gguf.c:gguf_dims", "dims[n - 1 - d] = (int64_t)v;",
    "dims[MUTANT ? d : n - 1 - d] = (int64_t)v;", GGUF + "a_file_loads_in_any_layout")
bug("gguf_data_not_aligned", "the data of GGUF are taken to begin right behind the list",
    "foreign/gguf.c:place_tensors", "data = (g->at + g->align - 1) / g->align * g->align;",
    "data = MUTANT ? g->at : (g->at + g->align - 1) / g->align * g->align;",
    GGUF + "a_file_loads_in_any_layout")
bug("gguf_quantised_read", "the blocks of a quantised tensor are read as values",
    "foreign/foreign_read.c:shf_foreign_gather", "if (t->refused)", "if (t->refused && !MUTANT)",
    GGUF + "a_quantised_tensor")
gullible("hub_main_missing", "a snapshot that refs/main names need not be there",
         "step/hub_cache.c:choose_snapshot", "is_snapshot_folder(sys, in, commit)",
         "sim/test_hub_cache: what_does_not_say_which")
MEGATRON_OUT = "sim/test_export_megatron: "
bug("megatron_moments_swapped", "the moments of Adam change places in a checkpoint of Megatron",
    "export/torch_write.c:shf_torch_state_key", "return keys[i][1];",
    "return keys[MUTANT && i < 2 ? 1 - i : i][1];", MEGATRON_OUT + "states_have")
bug("megatron_old_masters", "masters keep the name that Megatron-Core had before 0.14",
    "export/export_megatron.c:master_name", "strncmp(name, old, sizeof(old) - 1) == 0",
    "(strncmp(name, old, sizeof(old) - 1) == 0 && !MUTANT)", MEGATRON_OUT + "states_have")
GGUF_OUT = "sim/test_export_gguf: "
bug("gguf_out_dims_forward", "a GGUF file has the dimensions of tensors in the order of Sheaf",
    "export/export_gguf.c:list_tensor", "(uint64_t)dims[d]",
    "(uint64_t)dims[MUTANT ? ndim - 1 - d : d]",
    GGUF_OUT + "a_file_has_the_metadata")
bug("gguf_norms_stay", "norms keep their type in a GGUF file",
    "export/export_gguf.c:widen_vectors", "t->items.ndim > 1", "(t->items.ndim > 1 || MUTANT)",
    GGUF_OUT + "a_file_has_the_metadata")
bug("gguf_factors_turned", "high frequencies of RoPE are divided, and low ones are not",
    "export/gguf_model.c:make_factors", "wave < context / high",
    "(wave < context / high) != (bool)MUTANT", GGUF_OUT + "a_file_has_the_metadata")
bug("gguf_spaces_in_merges", "a space in a half of a merge stays a space",
    "export/gguf_vocab.c:add_half", "if (text[i] == ' ')", "if (text[i] == ' ' && !MUTANT)",
    GGUF_OUT + "a_file_has_the_metadata")
gullible("gguf_layer_missing", "a layer of a model may lack a tensor in a GGUF file",
         "export/export_gguf.c:check_has", "shf_layout_find(l, l->families[0].name, name) >= 0",
         GGUF_OUT + "what_is_missing")
blind("call_not_refused", "a pickle that would call os.system is read as data",
      "foreign/pickle.c:is_refused", "shf_pickle_is_refused(func, args)",
      PICKLE + "what_would_call")
blind("unfinished_value_taken", "a value of a pair is taken before its last items are there",
      "foreign/pickle_stack.c:shf_pk_take_early", "!is_complete(pair[1])",
      PICKLE + "a_value_that_goes_on")
bug("enum_not_known", "what plans of DCP are pickled as by some versions of Python 3.11 is refused",
    "foreign/pickle_calls.c:is_enum_member", "i < sizeof(enums) / sizeof(enums[0])",
    "i < (MUTANT ? 1 : sizeof(enums) / sizeof(enums[0]))", PICKLE + "the_getattr_that_is")
gullible("any_getattr_is_enum", "any getattr of a pickle is taken for a member of an enum",
         "foreign/pickle_calls.c:is_enum_member", "shf_pk_is_global(of, enums[i])",
         PICKLE + "what_would_call")
blind("memo_beyond_pickle", "a memo may be larger than the pickle",
      "foreign/pickle_memo.c:shf_pk_memo_put", "i > m->op - m->left_out",
      PICKLE + "what_would_call")
bug("list_for_one_step", "a list of plain values costs one step, however long it is",
    "foreign/pickle_walk.c:walk_list", "rc = walk_steps(w, 1);", "rc = walk_steps(w, !MUTANT);",
    TORCH + "a_list_that_many_lists_share")
DCP = "sim/test_torch_dcp: "
bug("chunk_start_ignored", "a chunk of a DCP tensor is read as if it began at the tensor's start",
    "foreign/foreign_read.c:gather_box", "have.start[d] = of->start ? of->start[d] : 0;",
    "have.start[d] = of->start && !MUTANT ? of->start[d] : 0;", DCP + "boxes_load")
bug("gaps_allowed", "items of a DCP tensor that no chunk has are read as whatever memory holds",
    "foreign/foreign_cover.c:shf_foreign_tiles", "if (cells[i].set_n == 1)",
    "if (cells[i].set_n == 1 || MUTANT)", DCP + "metadata_that_does_not_fit")
bug("torn_item_passed_over", "an item of a tensor that is no archive any more counts as unproved",
    "foreign/torch_dcp_item.c:dcp_verify_item", "!item->tensor &&", "(!item->tensor || MUTANT) &&",
    DCP + "a_tensor_whose_item_is_no_archive")
bug("file_in_use_closed", "a file of a DCP directory is closed while another thread reads it",
    "foreign/foreign_files.c:open_room", "if (x->users)", "if (x->users && !MUTANT)",
    DCP + "a_file_that_is_read_is_not_closed")
bug("place_twice", "of two places of one chunk in the metadata of DCP any is taken",
    "foreign/torch_dcp_index.c:shf_dcp_index_settle", "a[i - 1].file == a[i].file &&",
    "a[i - 1].file == a[i].file && !MUTANT &&", DCP + "metadata_that_does_not_fit")
blind("item_not_compared", "an item of another save is read as a chunk of this tensor",
      "foreign/torch_dcp_item.c:place_in_item", "rc == 0 && !is_chunk(&shown, t, p, items)",
      DCP + "metadata_that_does_not_fit")
bug("item_place_in_the_file", "values of a compressed item are read from the file as it is",
    "foreign/torch_dcp_item.c:shf_dcp_resolve", "if (rc == 0 && item.region.unpacker) {",
    "if (rc == 0 && item.region.unpacker && !MUTANT) {", DCP + "compressed_boxes_load")
bug("frames_after_the_first_lost", "only the first frame of zstd of an item is decoded",
    "foreign/unpack.c:decode_some", "u->ended = s.ended && !(u->of->frames &&",
    "u->ended = s.ended && !(u->of->frames && !MUTANT &&", DCP + "compressed_boxes_load")
blind("item_of_any_size", "an item may stand for any number of bytes",
      "foreign/unpack.c:shf_unpacker_measure", "u->hi > most", DCP + "metadata_that_does_not_fit")
INDEX = "sim/test_foreign_index: "
bug("left_out_shard_lost", "tensors of a shard that the index leaves out are lost",
    "format/shards.c:is_of_index", "(common_name(common, name, tail) &&",
    "(!MUTANT && common_name(common, name, tail) &&", INDEX + "an_index_that_is_not_right")
bug("listed_and_lost", "a tensor that the index lists and no file has is passed over",
    "step/catalog.c:match_foreign_index", "if (t < 0) {",
    "if (t < 0 && MUTANT) continue; if (t < 0) {",
    INDEX + "an_index_that_shows")
bug("first_copy_counts", "of a tensor in two files the first is read, whatever the index says",
    "step/catalog.c:drop_copies", "if (same > 1)", "if (same > 1 && !MUTANT)",
    "sim/test_foreign: a_tensor_in_two_shards")
skipped("index_not_synced", "the name of an index that was repaired is not durable",
        "export/repair_index.c:put_index_at", "shf_dir_fsync(sys, dir)",
        INDEX + "a_repair_survives_every_cut")
bug("unread_not_counted", "nobody says that a conversion lacks tensors that are not read",
    "foreign/pickle_walk.c:walk_unread", "if (w->by->add)", "if (w->by->add && !MUTANT)",
    "sim/test_torch_folder: an_index_may", "sim/test_torch_files: a_key_that_is_no_name")
bug("unread_not_indexed", "a repaired index lacks the weights that are not read",
    "foreign/torch_folder.c:add_all_unread", "rc = add_unread(d,",
    "rc = MUTANT ? 0 : add_unread(d,", "sim/test_torch_folder: an_index_may")
PADDLE = "sim/test_paddle_save: "
bug("fortran_ignored", "an array in Fortran's order is read as if it were row-major",
    "foreign/numpy_array.c:shf_numpy_array_of", "a->fortran = order->u.i != 0;",
    "a->fortran = order->u.i != 0 && !MUTANT;", PADDLE + "a_state_dict_loads")
bug("uint16_left", "a bfloat16 tensor of Paddle is read as integers",
    "foreign/paddle_tensor.c:shf_paddle_tensor_of", "if (a->dtype == SHEAF_U16)",
    "if (a->dtype == SHEAF_U16 && !MUTANT)", PADDLE + "a_state_dict_loads")
bug("array_too_short", "an array may have fewer bytes than its shape needs",
    "foreign/numpy_array.c:read_data", "return a->bytes == bytes;",
    "return a->bytes == bytes || MUTANT;", PADDLE + "an_array_that_cannot_be_read")
bug("part_lost", "the last parts of an array in parts may be missing",
    "foreign/paddle_save.c:parts_pieces", "!slices->n || r.lo != items",
    "!slices->n || (r.lo != items && !MUTANT)", PADDLE + "parts_that_do_not_make")
UNIFIED, FLEX = "sim/test_paddle_unified: ", "sim/test_paddle_flex: "
bug("slice_missing", "a state of which the slice of a rank is missing is read as if it were whole",
    "foreign/paddle_parts.c:join_flat", "if (r.lo != want)", "if (r.lo != want && !MUTANT)",
    UNIFIED + "slices_that_do_not_make")
bug("halves_in_a_row", "the halves of a fused weight of tensor-parallel ranks are not sorted",
    "foreign/paddle_parts.c:join_boxes", "int halves = fused ? 2 : 1;",
    "int halves = fused && !MUTANT ? 2 : 1;", UNIFIED + "parts_of_tensor_parallel")
bug("listed_not_found", "a tensor that the index lists and no file has is passed over",
    "foreign/paddle_unified.c:check_listed", "!u->index.seen[i] && !u->index.quantised",
    "!u->index.seen[i] && !u->index.quantised && !MUTANT", UNIFIED + "files_that_do_not_fit")
bug("family_of_index_not_read", "averages in a unified checkpoint of Paddle are passed over",
    "foreign/paddle_unified.c:unified_families", "if (!family)", "if (!family || MUTANT)",
    UNIFIED + "another_family_with_an_index")
bug("family_model_twice", "the family of the model is not the first one",
    "foreign/foreign_model.c:shf_foreign_add_tensor", 'strcmp(x.family, "model") ?',
    '(strcmp(x.family, "model") || MUTANT) ?', UNIFIED + "the_family_of_the_model")
bug("range_from_its_start", "a flat range of a box is read as if it began at the box's start",
    "foreign/foreign_range.c:range_add_box", "p.at = m->range->at + from - m->lo;",
    "p.at = m->range->at + from - (MUTANT ? 0 : m->lo);", FLEX + "the_folders_of_a_trainer")
bug("replica_of_any_number", "of the replicas of a part the one that was named last is read",
    "foreign/paddle_flex_index.c:comes_before", "replica < spot->replica ||",
    "replica < spot->replica || MUTANT ||", FLEX + "many_parts")
bug("kept_places_lost", "places that were not found at once are not given to their parts",
    "foreign/paddle_flex_index.c:give_kept",
    "lo < n && place_compare(&a[lo], &want) == 0 &&",
    "lo < n && !MUTANT && place_compare(&a[lo], &want) == 0 &&", FLEX + "many_parts")
bug("other_shape_in_file", "a part of a flex checkpoint may have another shape in its file",
    "foreign/paddle_flex_file.c:prove_array",
    "return ndim == (int32_t)t->ndim &&",
    "return MUTANT ? FLEX_FAULTS : ndim == (int32_t)t->ndim &&", FLEX + "files_that_are_not")
bug("text_of_another_size_reused", "the memory of a text is used for a longer one",
    "foreign/pickle_stack.c:pk_text_size", "return (n + 9 + 15) / 16;",
    "return MUTANT ? (n % 8 + 9 + 15) / 16 : (n + 9 + 15) / 16;",
    "unit/test_pickle: the_memory_of_texts_that_were_taken")
DSPD = "sim/test_deepspeed: "
bug("ranks_turned", "parts of ranks of ZeRO 3 are joined in the wrong order",
    "foreign/dspd_join.c:join_pieces", "join_span(d, j, kind, r, p->at,",
    "join_span(d, j, kind, MUTANT ? (uint32_t)world - 1 - r : r, p->at,",
    DSPD + "zero_3_loads")
bug("padding_is_data", "padding between parameters is taken for the values of the next one",
    "foreign/dspd_optimizer.c:place_in_groups", "at = g->items + padding;",
    "at = g->items + (MUTANT ? 0 : padding);", DSPD + "zero_1_loads")
bug("padding_of_ranks_is_data", "padding of a rank of ZeRO 3 is taken for values",
    "foreign/dspd_join.c:join_pieces", "(left < part ? left : part)",
    "(left < part && !MUTANT ? left : part)", DSPD + "zero_3_loads")
blind("exchanged_parts", "the files of two ranks may be exchanged",
      "foreign/dspd_optimizer.c:check_places",
      "!g || lo >= hi || (uint64_t)start != lo - from || (uint64_t)items != hi - lo",
      DSPD + "files_of_several_saves")
blind("other_step", "files of optimizers that have made different steps are joined",
      "foreign/dspd_optimizer.c:add_step", "g->step >= 0 && g->step != step",
      DSPD + "files_of_several_saves")
bug("box_at_the_start", "what a rank of tensor parallelism has is put at the start of the whole",
    "foreign/dspd_tensor.c:move_pieces", "start[k] = b->start[k] + (",
    "start[k] = (MUTANT ? 0 : b->start[k]) + (",
    DSPD + "boxes_of_tensor_parallel")
bug("states_from_elsewhere", "states of the optimizer begin where their own parts do, padding and "
    "all", "foreign/dspd_join.c:settle_states", "p[i].start = w[k].start;",
    "p[i].start = MUTANT && i ? p[i - 1].start + p[i - 1].items + 2 : w[k].start;",
    DSPD + "zero_1_loads")
blind("long_frozen_part", "a rank may have a part of a frozen parameter that is as long as the "
      "parameter", "foreign/dspd_join.c:settle_frozen", "p[i].items != each",
      DSPD + "files_of_several_saves")
gullible("other_order_on_a_rank", "a rank of ZeRO 3 may have other parameters than rank 0, or "
         "another order of them", "foreign/dspd_model.c:same_params",
         "same && at == params_n(d)", DSPD + "ranks_of_zero_3_that_say_other_parameters")
gullible("renamed_file", "a file of another rank, layer or expert may be given the name of one",
         "foreign/dspd_save.c:check_renamed", "!has_been_renamed(name, text)",
         DSPD + "files_of_layers_and_experts_that_were_renamed")
gullible("state_left_out", "a universal checkpoint may lack a state of a parameter",
         "foreign/dspd_universal.c:check_complete", "!file || p->frozen",
         DSPD + "a_universal_checkpoint_without_a_file")
MEGATRON = "sim/test_megatron: "
bug("flat_piece_from_its_start", "a piece of a flat range of Megatron-Core is read from the start "
    "of the range", "foreign/torch_dcp_flat.c:shf_dcp_flat_add",
    "own[x->ndim] = (int64_t)p->at;", "own[x->ndim] = MUTANT ? 0 : (int64_t)p->at;",
    MEGATRON + "boxes_and_flat_ranges")
bug("layer_at_the_start", "the flat ranges of all layers, and of all ranks, are those of the first",
    "foreign/torch_dcp_flat.c:shf_dcp_flat_add", "start[d] = at[d] * box[d];",
    "start[d] = MUTANT ? at[d] : at[d] * box[d];", MEGATRON + "boxes_and_flat_ranges")
gullible("flat_of_other_length", "an item of another length is read as a flat range",
         "foreign/torch_dcp_item.c:is_chunk",
         "shown->ndim == t->ndim + 1 && shown->dims[t->ndim] == items",
         MEGATRON + "flat_ranges_that_do_not_make")
bug("flat_of_other_shape", "the shape of a flat tensor need not fit the one that it is stored in",
    "foreign/torch_dcp_flat.c:shf_dcp_flat_dims", "return box == (uint64_t)t->dims[shape->n];",
    "return MUTANT || box == (uint64_t)t->dims[shape->n];",
    MEGATRON + "flat_ranges_that_do_not_make")
bug("state_of_another_family", "the fp32 weights of Megatron-Core are a state of the optimizer",
    "foreign/megatron.c:show_megatron", "if (dot && is_master(at,",
    "if (dot && !MUTANT && is_master(at,", MEGATRON + "boxes_and_flat_ranges")
TRAINER = "sim/test_hf_trainer: "
blind("names_by_guess", "of several parameters of one shape, state is given to any",
      "foreign/torch_states.c:name_by_shape",
      "(i + 1 < n && by_shape(&of[i], &of[i + 1]) == 0)", TRAINER + "state_gets_names")
blind("weights_by_guess", "state is given to any of several weights of its shape",
      "foreign/torch_states.c:name_by_shape",
      "k == m || by_shape(&weights[k], &of[i]) || "
      "(k + 1 < m && by_shape(&weights[k + 1], &of[i]) == 0)", TRAINER + "state_gets_names")
bug("names_by_rows", "state of rows or columns tells the shape of its parameter",
    "foreign/torch_states.c:name_by_shape", "!has_shape_of_parameter(of[i].t) ||",
    "(!MUTANT && !has_shape_of_parameter(of[i].t)) ||", TRAINER + "state_gets_names")
bug("state_of_the_next", "state is given the name of another parameter",
    "foreign/torch_states.c:rename_states", "if (of[mid].number <= want.number)",
    "if (MUTANT ? of[mid].number < want.number : of[mid].number <= want.number)",
    TRAINER + "state_gets_names")

# ---- exports ----
EXPORT = "sim/test_export_hf: "
skipped("export_not_synced", "a file of an export is renamed before it is durable",
        "export/export_pass.c:target_finish", "shf_sys_fsync(x->sys, t->fd)",
        EXPORT + "an_export_survives_every_cut")
skipped("export_dir_not_synced", "the names of an export are not durable before it is renamed",
        "export/export_dir.c:rename_to_dir", "shf_dir_fsync(d->sys, d->dir)",
        EXPORT + "an_export_survives_every_cut_strict")
bug("tied_name_lost", "an export lacks tied names, which readers of the format look for",
    "export/export_plan.c:choose_of_family", "(copies || !c->names[of])",
    "((copies && !MUTANT) || !c->names[of])", "sim/test_export_formats: a_tied_name")
bug("tied_state_lost", "moments that are one array are exported under one of their names",
    "export/export_plan.c:choose_all", '"model") && !opts->is_step',
    '"model") && !opts->is_step && !MUTANT',
    "sim/test_export_sharding: states_that_are_one_array")
bug("tied_state_that_differs_lost", "the state of a tied weight is left out, though it is another",
    "export/export_plan.c:leave_of_tied", "to->from != x->from", "(to->from != x->from && !MUTANT)",
    "sim/test_export_sharding: states_of_tied_weights_that_differ")
bug("export_not_compared", "what an earlier export finished is taken for right",
    "export/export_pass.c:chunk_compare", "(uint64_t)got != some || memcmp(",
    "(uint64_t)got != some || !MUTANT && memcmp(",
    EXPORT + "a_finished_file_that_differs_is_written_again")
gullible("export_not_read_back", "bytes that read back differently are believed",
         "export/export_pass.c:chunk_read_back", "shf_crc64_raw(0, w->bytes + i, (size_t)some) == "
         "*sums++", EXPORT + "what_reads_back")
skipped("export_block_not_checked", "a block of the step is exported whatever its checksum says",
        "step/step_checked.c:fetch_blocks",
        "shf_blocks_check(c->step, f, lo, c->blocks, hi - lo, NULL, err)",
        EXPORT + "damage_of_the_step")
bug("export_source_changes", "a source that changes while it is read is exported as it was read",
    "export/export_step.c:fill", "rc == 0 && !x->step->sound",
    "rc == 0 && !x->step->sound && !MUTANT", EXPORT + "a_source_without_checksums")
bug("export_copy_changes", "a file that changes while it is copied is exported as it was read",
    "export/export_beside.c:copy_open", "if (!shf_stat_is_same(&was, &is))",
    "if (!shf_stat_is_same(&was, &is) && !MUTANT)", EXPORT + "a_file_beside_the_source")
bug("export_meets_attached", "an attached file is copied to the name of a file of tensors",
    "export/export_beside.c:is_replaced", "is_planned(b->plan, name) ||",
    "(!MUTANT && is_planned(b->plan, name)) ||",
    "sim/test_export_sharding: attached_files_that_meet")
bug("export_from_cache", "what an earlier export finished is compared with the page cache",
    "export/export_pass.c:read_disk", "if (t->direct >= 0)", "if (t->direct >= 0 && !MUTANT)",
    EXPORT + "a_finished_file_is_compared_past")
bug("map_summands_reversed", "the key and the value of a kv head come before its queries",
    "map/map_sizes.c:place_product", "if (k < chosen)", "if (MUTANT ? k > chosen : k < chosen)",
    "sim/test_map_step: any_part_of_a_tensor")
bug("map_state_not_turned", "moments are copied where their weights are transposed and fused",
    "map/map_make.c:shf_map_make", "t->shaped ? put_shaped(p, &k)",
    "t->shaped && !(MUTANT && p->site->state) ? put_shaped(p, &k)",
    "sim/test_map_step: any_part_of_a_tensor",
    "unit/test_map: state_of_the_optimizer_is_mapped")
bug("map_short_state_shared", "the moment of a weight of one item counts as a value of all of it",
    "map/map_make.c:classify_item", "k->shared = have.ndim != weight.ndim ||",
    "k->shared = MUTANT || have.ndim != weight.ndim ||",
    "unit/test_map: state_of_a_weight_of_one_item")
bug("map_state_leaves_family", "state that a map moves out of the family that is mapped is lost",
    "map/map_make.c:check_family", "if (!chosen ||", "if (!chosen || MUTANT ||",
    "unit/test_map: state_that_a_map_moves")
bug("map_star_skips_tied", "a tied name is not made by a rule with {*}, and nobody says so",
    "map/map_plan.c:source_names_n", "+ p->l->tied_n", "+ (MUTANT ? 0 : p->l->tied_n)",
    "unit/test_map: a_star_takes_tied_names", "unit/test_map: a_tied_name_is_read")
bug("export_wrong_block", "blocks that are kept are taken for those of another file",
    "step/step_checked.c:shf_checked_read", "f != c->file ||",
    "(!MUTANT && f != c->file) ||",
    EXPORT + "an_export_has_the_files_of_the_step")
FORMATS = "sim/test_export_formats: "
bug("export_crc_of_parts", "the CRC-32 of a record in several chunks is that of its parts in a row",
    "export/export_pass.c:chunk_sum_tensors",
    "shf_crc32_more(x->plan.crc, 0, bytes, hi - lo), rest)",
    "shf_crc32_more(x->plan.crc, 0, bytes, hi - lo), MUTANT ? 0 : rest)",
    FORMATS + "records_of_several_chunks")
bug("crc32_begins_anew", "the CRC-32 of a long part forgets what came before it",
    "foreign/crc32.c:crc32_by_product", "(int)sum", "MUTANT ? 0 : (int)sum",
    "unit/test_pickle: crc32_is_that_of_zip")
bug("export_crc_not_compared", "sums that an earlier export wrote are taken for right",
    "export/export_pass.c:hole_compare", "x->targets[f].stale = true;",
    "x->targets[f].stale = !MUTANT;", FORMATS + "a_finished_file_is_compared")
skipped("export_file_not_durable", "a file is exported before its new name is durable",
        "export/export_dir.c:rename_to_dir", "shf_dir_fsync(d->sys, d->parent)",
        FORMATS + "an_export_survives_every_cut_strict")
bug("export_array_length_of_32_bits", "an array of 4 GiB gets a length of 32 bits",
    "export/paddle_write.c:array_begin", "n > UINT32_MAX ? 9 : 5",
    "(n = MUTANT ? (uint32_t)n : n) > UINT32_MAX ? 9 : 5",
    "unit/test_paddle_write: an_array_of_more_than_4_GiB")
bug("export_padding_not_past_tensors", "an array is aligned as if no tensor came before it",
    "export/paddle_write.c:put_padding", "w->out.len + p->tensors + more",
    "w->out.len + (MUTANT ? 0 : p->tensors) + more",
    "unit/test_paddle_write: arrays_lie_at_multiples_of_8")
bug("export_averages_of_masters", "averages without master weights get the names of those",
    "export/export_paddle_flex.c:tail_of", 'shf_layout_find(l, "master_weights", name) < 0',
    'shf_layout_find(l, "master_weights", name) < -MUTANT',
    "sim/test_export_paddle: averages_have_the_names")
bug("export_steps_of_parameters", "exports for Paddle have numbers of updates of parameters",
    "export/paddle_powers.c:shf_paddle_leave_steps", "if (rc < 0 || !updates)",
    "if (rc < 0 || !updates || MUTANT)",
    "sim/test_export_sharding: numbers_of_updates_of_single")
bug("export_flex_powers_not_listed", "metadata of Paddle lack the powers of the betas",
    "export/export_paddle_flex.c:put_dict_of", "k < 2 && with", "k < 2 && with && !MUTANT",
    "sim/test_export_paddle: a_flex_checkpoint_has_the_names_and_powers")
bug("export_power_of_this_update", "Paddle gets the powers of the betas of the last update",
    "export/paddle_powers.c:shf_paddle_powers", "(uint64_t)adam.step + 1",
    "(uint64_t)adam.step + !MUTANT",
    "sim/test_export_paddle: powers_of_the_betas")
bug("export_moves_not_past_powers", "tensors of Paddle lie where the powers of the betas are",
    "export/export_paddle_unified.c:list_tensors", ".off = c->bytes.len + t->off",
    ".off = (MUTANT ? 0 : c->bytes.len) + t->off",
    "sim/test_export_paddle: all_families_load")
SHARDED = "sim/test_export_sharding: "
bug("export_tied_apart", "the names of a tied weight have names of their own at run time in Paddle",
    "export/export_paddle_sharding.c:run_name", "s->params[s->params[param].shared].number",
    "s->params[MUTANT ? param : s->params[param].shared].number", SHARDED + "states_have_the_names")
bug("export_master_unnamed", "the state of a parameter with a master has the name of one without",
    "export/export_paddle_sharding.c:put_state", "s->params[s->param_of[t]].master ? MASTER",
    "s->params[s->param_of[t]].master && !MUTANT ? MASTER", SHARDED + "states_have_the_names")
bug("export_frozen_sharded", "frozen weights are parameters of the optimizer",
    "export/export_paddle_sharding.c:put_of_params", "p->shared != i || !p->trained",
    "p->shared != i || (!p->trained && !MUTANT)", SHARDED + "states_have_the_names")
bug("export_rates_differ", "a trainer gets the rate of the first group, though groups have others",
    "export/export_adam.c:shf_export_rate_find", "s.rates_differ ? 0",
    "s.rates_differ && !MUTANT ? 0", SHARDED + "a_trainer_of_paddle")
bug("export_moments_exchanged", "DeepSpeed gets the second moments as the first ones",
    "export/export_universal.c:place_state", "p->file = names[i].theirs;",
    "p->file = names[MUTANT && i < 2 ? 1 - i : i].theirs;",
    "sim/test_export_universal: all_families_load")
bug("export_step_is_next", "DeepSpeed gets a number of updates that is one too large",
    "export/export_universal.c:step_file", "(float)u->adam.step", "(float)(u->adam.step + MUTANT)",
    "sim/test_export_universal: step_and_betas")
bug("export_masters_not_used", "DeepSpeed gets the weights of the model where there are masters",
    "export/export_universal.c:place_weight", '"master_weights", t->name, n, "")',
    '"master_weights", t->name, n, MUTANT ? "?" : "")',
    "sim/test_export_universal: all_families_load")
skipped("export_folder_not_durable", "names in a folder are not durable when its export appears",
        "export/export_dir.c:folder_sync", "shf_dir_fsync(sys, fd)",
        "sim/test_export_universal: an_export_survives_every_cut_strict",
        FORMATS + "an_export_survives_every_cut_strict")
bug("pickle_memo_not_shared", "a record that the memo has is used again for another one",
    "foreign/pickle_memo.c:shf_pk_memo_put", "v->shared = true;", "v->shared = !MUTANT;",
    "unit/test_pickle: pairs_are_taken")
bug("pickle_dup_not_shared", "a record that is on the stack twice is used again for another one",
    "foreign/pickle.c:pk_dup", "v->shared = true;", "v->shared = !MUTANT;",
    "unit/test_pickle: a_record_that_was_doubled")
bug("pickle_size_not_shared", "the dimensions of a shared torch.Size are used again for others",
    "foreign/pickle.c:pk_size", "size->shared = true;", "size->shared = !MUTANT;",
    "unit/test_pickle: a_size_that_two_have")
gullible("dcp_place_of_another", "a box of DCP gets the place of another box of its tensor",
         "foreign/torch_dcp_index.c:give_place", "box_begins_at(dcp_box(t, i), offsets, t)",
         DCP + "boxes_load")
IMPORT = "sim/test_import_step: "
bug("import_source_changes", "a source that changes while it is read is imported as it was read",
    "import/import_step.c:import_stage", "rc == 0 && !m->step->sound",
    "rc == 0 && !m->step->sound && !MUTANT", IMPORT + "a_source_without_checksums")
bug("import_digest_of_two_files", "a file that is written twice counts twice in the digests",
    "export/export_pass.c:forget_digests", "x->digests && i < file->tensors_n",
    "!MUTANT && x->digests && i < file->tensors_n", IMPORT + "a_finished_file_in_the_stage")
bug("import_digest_not_shifted", "the digest of a tensor of several chunks is that of none",
    "export/export_pass.c:chunk_sum_tensors",
    "shf_crc64_shift(shf_crc64_raw(0, bytes, hi - lo), rest)",
    "shf_crc64_shift(shf_crc64_raw(0, bytes, hi - lo), MUTANT ? 0 : rest)",
    IMPORT + "files_of_several_chunks")
bug("import_left_out_unsaid", "a file that is not attached to an imported step is not counted",
    "export/export_beside.c:copy_open", "b->left_out++;", "b->left_out += !MUTANT;",
    IMPORT + "a_file_that_cannot_be_attached")
bug("import_keeps_others", "what else lies in the stage of an import becomes part of the step",
    "import/import_step.c:sweep_stage", "sweep_folder(m, m->stage.dir, top, true, err)",
    "MUTANT ? 0 : sweep_folder(m, m->stage.dir, top, true, err)",
    IMPORT + "a_finished_file_in_the_stage")
bug("box_sign_kept", "a box of DCP that is a negative view is read with the signs that are stored",
    "foreign/foreign_read.c:gather_box", "if (rc == 0 && p.flip_every)",
    "if (rc == 0 && p.flip_every && !MUTANT)", DCP + "boxes_that_are_negative")
bug("saved_offsets_ignored", "the parts of ranks in safetensors files are read as whole tensors",
    "foreign/torch_hf.c:hf_add_box", "if (o) memcpy(", "if (o && !MUTANT) memcpy(",
    "sim/test_torch_hf: the_files_of_ranks_are_one_tensor")
# ---- the trainer ----
NUM, RANKS, OPS, DATA, WHOLE, TENSORS, PIPE = ["train/test_train_%s: " % n for n in (
    "num", "comm", "ops", "data", "whole", "tensorpar", "pipe")]
GEMM, ISA = "train/test_train_gemm: ", "train/test_train_isa: "
NESTED, FEED = "train/test_train_nested: ", "train/test_train_rowfeed: "
ZERO, EVALS = "train/test_train_zero: ", "train/test_train_evals: "
PREP = "train/test_train_dataprep: "
SAME_BITS = TENSORS + "losses_and_gradients_have_the_same_bits"
bug("part_overwrites", "a part of a product replaces those before it", "num/gemm.c:tr_gemm",
    "k += TR_CHAIN, add = 1", "k += TR_CHAIN, add = MUTANT ? g->add : 1",
    GEMM + "products_have_the_bits")
bug("pair_of_two_parts", "the last pair of an odd number of items has one of the next part",
    "num/gemm.c:cell_at", "is_whole ? h[", "is_whole || MUTANT ? h[",
    GEMM + "products_of_pairs_have_the_bits")
bug("pairs_of_floats", "a product of floats with bf16 goes to the kernel for pairs",
    "num/gemm.c:kernel_of", "x.a == WIDENED && x.b", "(x.a == WIDENED || MUTANT) && x.b",
    GEMM + "the_tile_of_avx512_emulated")
gullible("places_not_compared", "the check at the start does not look where elements are",
    "num/isa.c:check_bf16", "check_places(isa, &x, sums, work)",
    GEMM + "a_kernel_for_pairs_that_is_wrong")
blind("auto_is_not_canonical", "auto takes kernels with bits of their own also with virtual",
    "run/trainstart.c:choose_isa", "j->o->virtual.dp", ISA + "auto_takes_avx512_bf16")
skipped("isa_by_rank", "each rank takes what its CPU has", "run/trainstart.c:choose_isa",
        "tr_allreduce(j->ranks, &lacks, 1, TR_MAX, err)", ISA + "a_rank_that_lacks_avx512_bf16")
bug("gradients_not_reduced", "each rank keeps the gradients of its own leaves",
    "comm/leafsum.c:tr_sum_leaves", "if (g->n == 1)", "if (g->n == 1 || MUTANT)",
    RANKS + "the_sum_over_leaves", WHOLE + "ranks_that_are_threads")
bug("targets_of_one_rank", "the loss is divided by the targets of one rank of dp",
    "task/lm.c:tr_lm_train", "tr_allreduce(t->mesh->all, &targets,",
    "tr_allreduce(MUTANT ? &t->mesh->tp : t->mesh->all, &targets,",
    WHOLE + "ranks_that_are_threads")
skipped("pieces_not_reduced", "each rank keeps the sum over its own pieces",
        "model/tensorpar.c:tr_sum_pieces_end", "sum_nodes(tp, rows, tp->pieces.n, y, err)",
        SAME_BITS)
gullible("norms_not_reduced", "with sp each rank keeps the gradients of norms over its own tokens",
         "optim/leafreduce.c:reduce_norms", "tokens->to - tokens->from == tokens->n", SAME_BITS)
gullible("own_largest_logit", "each rank takes the largest of its own logits",
         "model/crossentropy.c:find_max", "x->tp->ranks->n == 1", SAME_BITS)
blind("norms_hashed_on_all", "parameters of all ranks of tp count on each of them in the hash",
      "model/registry.c:tr_param_hash", "p->axis < 0 && r->pieces.from > 0", SAME_BITS)
blind("norms_counted_on_all", "parameters of all ranks of tp count on each of them in the norm",
      "optim/adamw.c:counted", "reg->pieces.from", SAME_BITS)
bug("drawn_by_local_index", "the initial weights of a shard are drawn as if it were the whole",
    "model/registry.c:tr_param_draw", "draw_items(p, x, index_of(p, from), n, seed, range);",
    "draw_items(p, x, MUTANT ? from : index_of(p, from), n, seed, range);", SAME_BITS)
bug("padding_not_zero", "an item between two parameters has a gradient",
    "optim/leafbuckets.c:tr_leaf_node", "lg->be->zero(lg->be, grad, b->to - b->from);",
    "{ lg->be->zero(lg->be, grad, b->to - b->from); "
    "if (MUTANT && lg->whole) lg->whole[lg->o.reg->norms - 1] = 1; }", SAME_BITS)
bug("tied_gradient_twice", "the gradient of a tied head is added to each leaf, and at the end",
    "optim/leafreduce.c:add_tied", "if (tr_leaf_is_tied(reg)) {",
    "for (int i = 0; tr_leaf_is_tied(reg) && i < 1 + MUTANT; i++) {",
    TENSORS + "the_gradient_of_a_tied_head")
bug("box_of_the_first_rank", "all ranks of tp save and load the shard of the first one",
    "run/bind.c:add_tensor", "slice.start[d] = p->start[d];",
    "slice.start[d] = MUTANT ? 0 : p->start[d];", WHOLE + "ranks_that_are_threads")
bug("moment_of_another_shard", "the first moment is that of a neighbour's rows",
    "run/bind.c:add_kind", "slice.data = kind == WEIGHT ?",
    "if (MUTANT && kind == MOMENT1 && p->axis == 0 && p->start[0]) at += p->shape[1]; "
    "slice.data = kind == WEIGHT ?",
    WHOLE + "ranks_that_are_threads")
bug("chains_added_one_by_one", "the chains of a piece are added to those of the piece before it",
    "model/tensorpar.c:add_product", "over.to - over.from > TR_CHAIN",
    "(!MUTANT && over.to - over.from > TR_CHAIN)", TENSORS + "ranks_with_several_nodes")
bug("evaluation_of_one_rank", "an evaluation has the samples of one rank of dp only",
    "task/lm.c:tr_lm_evaluate", "tr_allreduce(&t->mesh->dp, &targets, 1, TR_SUM, err)",
    "tr_allreduce(MUTANT ? &t->mesh->tp : &t->mesh->dp, &targets, 1, TR_SUM, err)",
    EVALS + "evaluations_have_the_same_bits")
bug("piece_cut_by_ranks", "a dimension is cut by the number of ranks",
    "model/tensorpar.c:span_of", "tr_param_cut(p->reg, t->param, piece + 1)",
    "tr_param_cut(p->reg, t->param, MUTANT ? p->reg->pieces.to : piece + 1)", SAME_BITS)
bug("leaf_closed_early", "a leaf is added up while a sample of it is still to come",
    "task/lm.c:closed_by", "end_of(p, micro))", "end_of(p, micro) + MUTANT)",
    WHOLE + "ranks_that_are_threads")
bug("micro_batches_swapped", "a backward pass has the activations of another micro-batch",
    "task/pipeline.c:work", "(int)(w->micro %", "(int)((w->micro + (MUTANT && w->backward)) %",
    WHOLE + "ranks_that_are_threads")
blind("layers_not_again", "a backward pass has the activations of the layer that was computed last",
      "model/qwen2.c:tr_model_backward", "m->recompute", SAME_BITS)
bug("mask_of_every_step", "dropout drops the same items in every step",
    "num/dropmask.c:tr_dropmask_of", "more(key, d->step)", "more(key, MUTANT ? 0 : d->step)",
    NUM + "masks_of_dropout")
bug("mask_of_the_next_layer", "a backward pass drops the items of another layer",
    "model/qwen2.c:gather_gradient", "purpose, l, m->dxn", "purpose, l + MUTANT, m->dxn",
    "train/test_train_model: with_dropout_the_loss_falls")
bug("mask_by_place_in_the_call", "dropout numbers samples by their place in a micro-batch",
    "model/backend_cpu.c:cpu_drop", "rows->sample[s]", "(MUTANT ? s : rows->sample[s])",
    "train/test_train_model: gradients_have_the_same_bits")
bug("mask_by_local_row", "with sp dropout numbers the rows of a rank",
    "model/backend_cpu.c:cpu_drop", "i, y + at", "MUTANT ? at / size : i, y + at", SAME_BITS)
bug("mask_by_local_head", "the heads of each rank of tp drop the same probabilities",
    "model/qwen2.c:attention", "param(m, l, TR_Q)->start[0] / m->c.head_size",
    "(MUTANT ? 0 : param(m, l, TR_Q)->start[0] / m->c.head_size)", SAME_BITS)
bug("layers_again_without_mask", "a layer that is computed again drops nothing",
    "task/lm.c:micro_batch_rows", "rows->drop = p->drop.rate",
    "rows->drop = MUTANT && backward ? NULL : p->drop.rate", WHOLE + "ranks_that_are_threads")
bug("evaluation_drops", "an evaluation drops items as a training does",
    "task/lm.c:tr_lm_evaluate", ".scale = 1 }",
    ".scale = 1, .drop = { .rate = MUTANT ? lm->o.dropout : 0 } }",
    EVALS + "evaluations_have_the_same_bits")
bug("parts_overlap", "two parts of an arena share memory", "model/arenas.c:ask",
    "a->items[kind] + rounded(items)", "a->items[kind] + (MUTANT ? items / 2 : rounded(items))",
    "train/test_train_plan: parts_of_arenas")
bug("moments_forgotten", "moments in a file are lost between two updates",
    "run/offload.c:map_file", "MAP_SHARED", "(MUTANT ? MAP_PRIVATE : MAP_SHARED)",
    WHOLE + "moments_in_a_file")
bug("layer_between_stages", "the layer before a boundary is in no stage",
    "task/training.c:plan_work", "first_layer(t, c, in_model + 1),",
    "first_layer(t, c, in_model + 1) - (MUTANT && in_model == 0 && p->stages > 1),",
    WHOLE + "ranks_that_are_threads")
skipped("gradients_of_two_stages", "each stage updates the embedding with its own gradient",
        "optim/leafreduce.c:add_tied", "tr_exchange(pp, out, in, err)",
        PIPE + "both_stages_get_the_gradient")
bug("copy_counted", "the head of the last stage counts in the norm as well as the embedding",
    "model/registry.c:lay_out", "r->counted = at;", "r->counted = MUTANT ? 0 : at;",
    PIPE + "both_stages_get_the_gradient")
blind("copy_hashed", "the head of the last stage counts in the hash as well as the embedding",
      "model/registry.c:tr_param_hash", "p->copy", PIPE + "the_stages_together")
skipped("weights_of_others_stale", "a rank keeps the old weights of what other ranks update",
        "task/training.c:tr_trainer_update", "tr_trainer_spread(t, err)",
        WHOLE + "ranks_that_are_threads")
bug("gates_of_the_share_only", "a rank receives weights that a save still reads",
    "optim/adamw.c:update_items", "gate->wait(gate->arg, i, err)",
    "(MUTANT && a->shares && i > 0 ? 0 : gate->wait(gate->arg, i, err))",
    ZERO + "the_gates_of_all_parameters")
bug("moments_of_another_area", "the shares of both areas have the same moments",
    "optim/zeroshares.c:tr_shares_at", "return (area ?", "return (area && !MUTANT ?",
    WHOLE + "ranks_that_are_threads")
skipped("layer_read_too_early", "a forward pass reads the weights of before the update",
        "optim/weightgather.c:tr_weightgather_wait",
        "tr_queue_wait(g->queue, g->ticket[layer + 1], err)", WHOLE + "ranks_that_are_threads")
bug("nodes_left_out", "a sum over the leaves of a round has only the first node",
    "comm/leafsum.c:end_block", "complete(s, low, end[i] - low, items)",
    "(MUTANT ? s->part[i].at : complete(s, low, end[i] - low, items))",
    RANKS + "a_sum_in_rounds", WHOLE + "ranks_that_are_threads")
bug("head_cut_elsewhere", "the gradient of a tied head is cut otherwise than the embedding",
    "optim/leafbuckets.c:tr_leaf_buckets", "if (i == reg->layers + 1 && tr_leaf_is_tied(reg))",
    "if (i == reg->layers + 1 && tr_leaf_is_tied(reg) && !MUTANT)",
    WHOLE + "ranks_that_are_threads")
bug("head_share_misplaced", "the embedding gets its own gradient twice instead of the head's",
    "optim/leafreduce.c:add_tied", "sum_at(lg, b, 0), tr_leaf_own(lg, b));",
    "sum_at(lg, MUTANT ? &lg->bucket[0] : b, 0), tr_leaf_own(lg, b));",
    WHOLE + "ranks_that_are_threads")
skipped("sums_not_waited_for", "an update takes the sums of other ranks before they are there",
        "task/training.c:wait_param",
        "tr_leafgrads_wait(u->t->grads, &tr_model_registry(u->t->model)->param[i], err)",
        WHOLE + "ranks_that_are_threads")
bug("block_used_while_sent", "the next layer is computed in a block that is still being added up",
    "optim/leafreduce.c:add_up_round", "r->ticket = series_added(lg);",
    "r->ticket = MUTANT ? 0 : series_added(lg);",
    WHOLE + "ranks_that_are_threads")
bug("leaves_dealt_alike", "the leaves of a round are those of the first rank on all ranks",
    "optim/leafgrads.c:tr_leafgrads_leaf", "lg->o.mesh->dp.rank * round.each",
    "(MUTANT ? 0 : lg->o.mesh->dp.rank) * round.each", WHOLE + "ranks_that_are_threads")
bug("complete_exchange_fails", "an exchange that is complete fails because of a later one",
    "comm/ranks_threads.c:progress_threads", "good = *done || !all->broken;",
    "good = (*done && (good || !MUTANT)) || !all->broken;",
    RANKS + "an_exchange_that_is_complete")
bug("channels_mixed", "messages of all channels from a rank are received in one order",
    "comm/ranks_threads.c:take_message", "m->channel != channel",
    "(!MUTANT && m->channel != channel)", RANKS + "messages_of_a_channel")
bug("first_kv_head_for_all", "all heads attend to the first kv head",
    "model/backend_attention.c:head_of", "h / (a->heads / a->kv_heads) * a->size",
    "(MUTANT ? 0 : h / (a->heads / a->kv_heads)) * a->size", OPS + "attention_has_its_values")
bug("gate_not_called", "the optimizer changes what a save still reads",
    "optim/adamw.c:update_items", "gate && p->tied_to < 0", "gate && !MUTANT && p->tied_to < 0",
    DATA + "a_parameter_is_not_changed")
bug("epochs_alike", "the key of the shuffle lacks the epoch", "data/sampleorder.c:permute",
    "TR_RANDOM_SHUFFLE, epoch,", "TR_RANDOM_SHUFFLE, MUTANT ? 0 : epoch,",
    DATA + "each_epoch_has_each_sample")
bug("samples_again", "a resume begins with the first samples again", "run/bindfind.c:read_notes",
    ".consumed = (int64_t)x[0]", ".consumed = MUTANT ? 0 : (int64_t)x[0]",
    WHOLE + "ranks_go_on_with_what")
bug("bias_of_the_first_step", "a resume corrects the moments as if they were fresh",
    "run/bindfind.c:read_notes", ".adam_step = (int64_t)x[4]",
    ".adam_step = MUTANT ? 0 : (int64_t)x[4]",
    WHOLE + "ranks_go_on_with_what")
bug("state_not_loaded", "a resume leaves weights and moments as they are",
    "run/trainstart.c:fill", "rc = tr_trainer_spread(&j->t, err);",
    "if (MUTANT) tr_trainer_draw(&j->t, 1, j->setup.config.init_range);"
    "rc = tr_trainer_spread(&j->t, err);",
    WHOLE + "ranks_go_on_with_what")
blind("other_options_accepted", "ranks train with different options", "run/trainstart.c:"
      "agree_on_options", "x[0] != ~x[1]", WHOLE + "ranks_with_different_options")
blind("newer_steps_unseen", "a training begins that its run cannot save",
      "run/bindfind.c:check_newest", "c.newest > step && s->rewind_to < 0",
      WHOLE + "a_run_that_cannot_be_saved_to")
blind("another_run_rewound", "rewind is taken with the step of another run",
      "run/bindfind.c:open_named", "!own && rewind", WHOLE + "a_run_is_the_same_one")
blind("other_data_unseen", "a resume goes on at its place in other data",
      "run/trainstart.c:check_data", "other && !tr_store_is_other(j->store)",
      WHOLE + "a_resume_notices")
bug("arrays_alike", "an array that is received has the items of the one before it",
    "comm/nested.c:get_array", "r->arrays_used += aligned(bytes);",
    "r->arrays_used += MUTANT ? 0 : aligned(bytes);", NESTED + "trees_of_any_shape")
bug("attention_over_documents", "attention goes over the documents of a sample",
    "model/backend_attention.c:begins_of", "return rows->part ? rows->part : rows->begin;",
    "if (MUTANT) *n = rows->seqs; return rows->part && !MUTANT ? rows->part : rows->begin;",
    "train/test_train_model: a_part_has_the_losses")
bug("target_of_the_next_document", "the last token of a document has the next one's as target",
    "data/rowread.c:read_mask", "b->mask[b->document[i]] = 0;",
    "b->mask[b->document[i]] = MUTANT;", FEED + "rows_have_parts")
blind("lost_part_unseen", "a token file that is gone is continued as if it were there",
      "data/dataprep.c:make_file", "st.st_size != size", PREP + "what_a_killed_process")
gullible("other_inputs_continued", "a token file is continued with other inputs",
         "data/preplog.c:read_lines", "strcmp(line, first) == 0", PREP + "what_a_killed_process")
bug("line_cut_at_a_chunk", "a chunk begins in the middle of a line",
    "data/dataprep.c:find_line", "int c = 0;", "int c = MUTANT ? '\\n' : 0;",
    PREP + "any_number_of_threads")
blind("long_line_taken", "a line of JSONL is read however long it is",
      "data/dataprep.c:work_on_lines", "n > most", PREP + "a_line_that_is_too_long")
bug("failed_save_is_last", "after a save that failed the training ends as if it were saved",
    "run/trainsave.c:take_save", "j->last_saved = j->committed;",
    "j->last_saved = MUTANT ? j->t.step : j->committed;",
    WHOLE + "the_training_goes_on_while_the_disk")
gullible("counted_by_all_readers", "all ranks that read count the targets of the same samples",
         "task/rowfeed.c:tr_rowfeed_count", "is_first(f)", FEED + "rows_reach_all_ranks")
MIXED = "train/test_train_mixed: "
bug("rounded_before_the_tree", "the sum over a piece is rounded to bf16 before the tree",
    "model/tensorpar.c:product_of_piece", "product(s, &p->term[i], piece, to, i > 0);",
    "product(s, &p->term[i], piece, to, i > 0);"
    "for (int64_t k = 0; MUTANT && s->be->type == TR_BF16 && k < s->items; k++) {"
    "s->be->round(s->be, to + k, to + k, 1); to[k] = tr_widen(*(uint16_t *)(void *)(to + k)); }",
    TENSORS + "a_sum_over_pieces_of_bf16")
bug("masters_rounded", "an update begins with the weights of the model and not with the masters",
    "task/training.c:round_masters", "own.to - own.from);", "own.to - own.from);"
    "for (int64_t k = 0; MUTANT && k < own.to - own.from; k++) "
    "w[k] = tr_widen(((uint16_t *)weights)[own.from + k]);",
    MIXED + "updates_that_are_too_small")
bug("velocity_of_another_matrix", "a momentum is saved under the name of another matrix",
    "run/bind.c:add_kind", "kind == MOMENT1 ? t->adamw.m + at :",
    "kind == MOMENT1 ? t->adamw.m + at + (MUTANT && muon && p[1].matrix && p[1].items == p->items "
    "? p[1].offset - p->offset : 0) :", MIXED + "layouts_with_muon")
bug("columns_joined_as_rows", "the parts of a matrix that is cut into columns are joined as rows",
    "optim/muon.c:orthogonalise", "move_parts(u, p, 0);",
    "if (MUTANT) memcpy(u->x, u->parts, (size_t)(p->shape[0] * p->shape[1]) * sizeof(*u->x)); "
    "else move_parts(u, p, 0);", MIXED + "layouts_with_muon")
bug("shares_cut_by_parts", "ranks of tp have different parameters in the same share",
    "optim/zeroshares.c:whole_items", "items += p->shape[0] * p->shape[1];",
    "items += MUTANT ? p->items : p->shape[0] * p->shape[1];",
    ZERO + "ranks_of_tp_have_the_same_parameters")
SAVES = "train/test_train_saves: "
bug("signal_of_one_rank", "a rank obeys the signals that it got itself, and not those of others",
    "run/trainsave.c:tr_job_agree", "int rc = tr_agree_bits(j->ranks, code, &asked, err);",
    "uint64_t own = asked; int rc = tr_agree_bits(j->ranks, code, &asked, err);"
    "if (MUTANT) asked = own;", SAVES + "whichever_rank_gets_a_signal_to_save")
bug("signal_saves_again", "a signal to save is not cleared when the save begins",
    "run/trainsave.c:tr_job_save", "j->signals->save = 0;", "j->signals->save = MUTANT;",
    SAVES + "whichever_rank_gets_a_signal_to_save")
bug("late_save_is_none", "a training ends well whose last step was not saved in time",
    "run/trainsave.c:advance", "return rc == TR_EAGAIN ?",
    "if (MUTANT && rc == TR_EAGAIN) return 0; return rc == TR_EAGAIN ?",
    SAVES + "a_training_that_cannot_be_saved")
bug("last_save_is_bounded", "the last save may take as long as ranks wait for each other",
    "run/trainsave.c:complete", "if (rc != TR_EAGAIN || stops)",
    "if (rc != TR_EAGAIN || stops || MUTANT)", SAVES + "the_last_step_is_saved")
bug("memory_not_looked_at", "a resume looks for checkpoints on disk only",
    "run/bindfind.c:open_newest", "s->only ? s->only : SHEAF_LATEST",
    "s->only ? s->only : MUTANT ? 1 << 30 : SHEAF_LATEST",
    SAVES + "after_a_rank_was_lost")
bug("memory_is_disk", "a step that was resumed from memory counts as if it were on disk",
    "run/trainstart.c:fill", "j->progress.on_disk ? j->progress.step : 0",
    "j->progress.on_disk || MUTANT ? j->progress.step : 0", SAVES + "after_a_rank_was_lost")
bug("memory_without_gate", "a gate does not wait for a save to memory", "run/bindsave.c:wait_gate",
    "to < TR_PLACES", "to < TR_PLACES - MUTANT", WHOLE + "a_save_has_no_byte")
bug("lost_again_unsaid", "an agent that is lost a second time is not reported",
    "run/trainsave.c:advance", "j->memory_lost = 0;", "j->memory_lost = MUTANT;",
    SAVES + "an_agent_that_is_lost_again")
bug("first_of_block_unchecked", "a document of a block may begin before those of the last one",
    "data/tokenfile.c:tr_tokenfile_check_documents", "at += CHECKED_AT_ONCE - 1",
    "at += CHECKED_AT_ONCE - !MUTANT", DATA + "documents_that_are_not_in_order_are_found")
skipped("eval_data_unread", "what is wrong with eval-data is found at the first evaluation",
        "run/trainstart.c:make_eval", "tr_lm_check(j->eval, err)",
        EVALS + "data_of_evaluations_are_checked")
RESUME = "train/test_train_resume: "
bug("resume_other_seq", "a resume with another seq goes on at the same number of samples",
    "run/trainstart.c:find_checkpoint", "j->o->seq != before.seq",
    "j->o->seq != before.seq && !MUTANT", RESUME + "samples_of_another_length")
bug("notes_of_rank_0", "only rank 0 says where the training is", "run/bindsave.c:tr_store_begin",
    "add_notes(s, *save, p);", "if (!MUTANT || s->ranks->rank == 0) add_notes(s, *save, p);",
    RESUME + "ranks_that_have_different_places")
bug("damaged_step_goes_on", "an older checkpoint goes on at the place of the damaged one",
    "run/trainstart.c:load", "step >= 0 && step != j->progress.step",
    "step >= 0 && step != j->progress.step && !MUTANT", RESUME + "where_the_newest",
    RESUME + "after_a_fallback")
bug("damaged_list_ends_it", "a list of tensors that is damaged ends the search for checkpoints",
    "run/bindfind.c:open_newest", "rc == SHEAF_ECORRUPT && !s->only",
    "rc == SHEAF_ECORRUPT && !s->only && !MUTANT", RESUME + "where_the_newest")
bug("evaluation_writes", "an evaluation opens the run for writing", "run/bind.c:tr_store_open",
    "o->reads_only ? SHEAF_RUN_READONLY", "o->reads_only && !MUTANT ? SHEAF_RUN_READONLY",
    EVALS + "an_evaluation_has")
bug("bad_checkpoint_before", "before a damaged file a checkpoint counts that is marked bad",
    "run/bindfind.c:see_before", "item->mark != SHEAF_MARK_BAD &&",
    "(MUTANT || item->mark != SHEAF_MARK_BAD) &&", RESUME + "training_does_not_go_back")
bug("rewind_without_verify", "a run is rewound to a checkpoint that was not verified",
    "run/bindfind.c:tr_store_rewind", "rc = sheaf_checkpoint_verify(s->found, NULL, &e);",
    "rc = MUTANT ? 0 : sheaf_checkpoint_verify(s->found, NULL, &e);",
    RESUME + "before_a_rewind", RESUME + "nothing_is_set_aside_for")
bug("runs_are_mixed", "a run with checkpoints goes on with that of another run",
    "run/bindfind.c:check_newest", "s->elsewhere && c.newest >= 0",
    "s->elsewhere && c.newest >= 0 && !MUTANT", RESUME + "a_checkpoint_of_another_run")
bug("options_of_damaged_step", "options that only the damaged checkpoint has stay after a fallback",
    "run/trainstart.c:start_again", "tr_opts_reset(j->o, err)",
    "MUTANT ? 0 : tr_opts_reset(j->o, err)", RESUME + "after_a_fallback_options_that_only")
bug("pruned_checkpoints_stay", "checkpoints that are not kept stay in the trash for a while",
    "run/bind.c:tr_store_open", ".grace_s = -1", ".grace_s = MUTANT ? 0 : -1",
    RESUME + "checkpoints_that_are_not_kept")
bug("evaluation_needs_run", "an evaluation of another run fails without a run of its own",
    "run/bind.c:tr_store_open", "rc == TR_ENOENT && o->reads_only",
    "rc == TR_ENOENT && o->reads_only && !MUTANT", EVALS + "an_evaluation_of_another_run")
bug("losses_of_other_data", "keep-best compares losses of different data",
    "run/bindfind.c:check_loss", "strcmp(was, s->loss_key) == 0",
    "(MUTANT || strcmp(was, s->loss_key) == 0)", RESUME + "keep_best_is_refused")
bug("swap_without_wait", "a step begins before other ranks have sent the weights back",
    "task/training.c:tr_trainer_swap", "return rc == 0 ? tr_trainer_settle(t, err) : rc;",
    "return rc == 0 && !MUTANT ? tr_trainer_settle(t, err) : rc;",
    EMA + "an_evaluation_of_the_average")
bug("loss_of_another_step", "a checkpoint has the loss of an earlier step",
    "run/trainsave.c:begin_save", "j->last_eval == j->t.step;",
    "MUTANT ? j->last_eval >= 0 : j->last_eval == j->t.step;",
    EVALS + "checkpoints_of_steps_that_were")
bug("evaluation_ignores_signals", "an evaluation goes on although a signal asks for a checkpoint",
    "run/trainloop.c:ends_early", "j->stop_ns || must_save(j)",
    "!MUTANT && (j->stop_ns || must_save(j))", SAVES + "an_evaluation_ends_early")
bug("saved_before_evaluation", "the last step is saved before its evaluation",
    "run/trainloop.c:step", "reason_to_end(j) ||", "(reason_to_end(j) && !MUTANT) ||",
    EVALS + "checkpoints_of_steps_that_were")
bug("ends_of_checkpoint_stay", "epochs of a checkpoint end a training that was given more steps",
    "run/trainopts.c:is_taken", "> TR_FROM_CHECKPOINT)", "> TR_FROM_CHECKPOINT && !MUTANT)",
    "train/test_train_opts: steps_or_epochs_that")
bug("gate_ends_with_time", "a gate opens when a copy takes longer than ranks wait for each other",
    "run/bindsave.c:wait_gate", "while (rc == SHEAF_EAGAIN);",
    "while (rc == SHEAF_EAGAIN && !MUTANT);", WHOLE + "a_save_has_no_byte")
bug("step_of_failed_evaluation_lost", "a training whose evaluation fails ends without a save",
    "run/trainloop.c:evaluate", "tr_job_rescue(j);", "if (!MUTANT) tr_job_rescue(j);",
    EVALS + "the_step_of_an_evaluation_that_fails")
bug("step_before_unread_data_lost", "a training whose data cannot be read ends without a save",
    "run/trainloop.c:step", "tr_job_rescue(j);", "if (!MUTANT) tr_job_rescue(j);",
    EVALS + "the_last_step_is_saved")
bug("gate_opens_at_once", "a gate does not wait for the copy of its parameter",
    "run/bindsave.c:wait_gate", "slice < 0 ? 0 :", "slice < 0 || MUTANT ? 0 :",
    WHOLE + "a_save_has_no_byte")
EMA = "train/test_train_ema: "
bug("damaged_step_stays", "a damaged checkpoint stays before the older one that has other tensors",
    "run/trainstart.c:load", "j->sets_aside = rc < 0;", "j->sets_aside = rc < 0 && !MUTANT;",
    EMA + "where_the_newest_checkpoint_is_damaged")
bug("average_without_matrices", "the matrices that Muon updates are not averaged",
    "optim/muon.c:tr_muon_update", "tr_adamw_average(a, u->be->isa, at, w, p->items);",
    "if (!MUTANT) tr_adamw_average(a, u->be->isa, at, w, p->items);",
    EMA + "the_average_has_the_bits")
bug("average_of_old_weights", "the average gets the weights of before the update",
    "optim/adamw.c:update_items",
    "isa->row.adamw(w, a->m + at, tr_adamw_second(a, i, at), g, own.to - own.from, s);",
    "if (MUTANT) tr_adamw_average(a, isa, at, w, own.to - own.from); "
    "isa->row.adamw(w, a->m + at, tr_adamw_second(a, i, at), g, own.to - own.from, s); "
    "if (MUTANT) continue;",
    EMA + "the_average_has_the_bits")
bug("average_begins_with_zero", "the average begins with zero and not with the weights",
    "run/trainstart.c:begin_average", "tr_trainer_average(&j->t);",
    "if (!MUTANT) tr_trainer_average(&j->t);", EMA + "the_average_has_the_bits",
    EMA + "where_a_checkpoint_has_no_average")
blind("average_begins_again", "a resume begins the average again with the weights",
      "run/bind.c:tr_store_has_average", "s->has_average", WHOLE + "ranks_go_on_with_what")
bug("average_of_another_share", "a rank saves the average of items that another rank has",
    "run/bind.c:add_kind", "t->adamw.ema + at :", "t->adamw.ema + at - (MUTANT && at > 0) :",
    WHOLE + "ranks_that_are_threads")
bug("average_stays_in_the_model", "after an evaluation the average is the model",
    "run/trainloop.c:evaluate", "back = swap_average(j, rc < 0 ? &also : err);",
    "back = MUTANT ? 0 : swap_average(j, rc < 0 ? &also : err);",
    EMA + "an_evaluation_of_the_average")
CKPT = "sim/test_torch_ckpt: "
bug("ckpt_any_mesh_place", "the rank at a place of a mesh is taken to be that of the first place",
    "foreign/torch_ckpt.c:add_at_mesh", "m->ranks->u.a[place]", "m->ranks->u.a[MUTANT ? 0 : place]",
    CKPT + "what_ranks_have")
bug("ckpt_rank_twice", "one part of a rank is taken for two places of a tensor",
    "foreign/torch_ckpt.c:find_part", "if (p->used)", "if (p->used && !MUTANT)",
    CKPT + "metadata_that_do_not_fit")
TRAINING = "sim/test_torch_training: "
bug("legacy_files_are_no_trainings", "states in legacy files keep their numbers",
    "foreign/lightning.c:open_values", "else if (rc == 0)",
    "else if (rc == 0 && !(MUTANT && add == shf_torch_legacy_add))",
    TRAINING + "a_legacy_file_is_read")
bug("ranks_without_metadata", "files of several ranks are read without metadata",
    "foreign/torch_ckpt_bare.c:open_bare_ckpt", "rc == 0 && r.ranks > 1",
    "rc == 0 && r.ranks > 1 && !MUTANT", "sim/test_torch_ckpt: files_of_several_ranks")
blind("training_shape_ignored", "a state is given to a weight of another shape",
      "foreign/torch_training.c:name_in_order",
      "p->state && shf_torch_shape_compare(p->state, w)", TRAINING + "what_does_not_fit")
blind("training_groups_mixed", "groups of parameters of one shape are told apart by the order",
      "foreign/torch_training.c:sort_params",
      "sorted[i - 1]->group != sorted[i]->group", TRAINING + "groups_are_told_apart")
bug("dcp_states_unshaped", "a moment of DCP need not have the shape of its weight",
    "foreign/torch_dcp_states.c:weight_of", "shf_torch_shape_compare(weight->t, s->t)",
    "(shf_torch_shape_compare(weight->t, s->t) && !MUTANT)",
    "sim/test_torch_dcp_states: what_is_not_surely")
bug("dcp_states_twice", "two optimizers of DCP give their states the names of one weight",
    "foreign/torch_dcp_states.c:rename_group", "has_state = true", "has_state = !MUTANT",
    "sim/test_torch_dcp_states: each_of_several")
bug("step_link_passed_over", "a link with the name of the newest step is passed over",
    "store/list.c:fail_if_link", "st.type != SHF_T_LINK", "(MUTANT || st.type != SHF_T_LINK)",
    "unit/test_store: a_link_with_the_name")
bug("full_disk_keeps_all", "nothing is pruned on a full disk",
    "store/prune_steps.c:note_descent", "leave_all_but_oldest(list)",
    "!MUTANT && leave_all_but_oldest(list)", "unit/test_prune: on_a_full_disk")
bug("full_disk_cuts_chains", "on a full disk steps between others go without a note of it",
    "store/prune_steps.c:leave_all_but_oldest", "stays = stays || !e->goes;",
    "stays = !MUTANT && (stays || !e->goes);", "unit/test_prune: on_a_full_disk")
bug("old_grace_counts", "a step that was taken back keeps its old grace",
    "store/prune_steps.c:remove_step", 'shf_sys_unlink(sys, dir, "sheaf.pruned", false);',
    'if (!MUTANT) shf_sys_unlink(sys, dir, "sheaf.pruned", false);',
    "unit/test_prune: a_step_that_was_taken_back")
bug("whole_file_passed_over", "shards with an index come before a whole file",
    "format/shards.c:shf_shards_are_beside", "return beside;", "return beside && !MUTANT;",
    INDEX + "a_whole_file_comes_before")
