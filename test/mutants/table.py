# SPDX-License-Identifier: Apache-2.0
"""The planted bugs: where, what becomes of it, and who must notice.

In what is put there the word MUTANT is true while the bug is awake. Places are found by their
words, whatever the white space, inside the function named; there must be one. Tests are "program:
claim", the program by its name under test/, the claim as its filter takes it; each must turn red.
"""
import collections

Mutant = collections.namedtuple("Mutant", "name what file function find put tests")
MUTANTS = []


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
                                   "unit/test_prune: ", "sim/test_ops: ")
CUT = "_survives_every_cut_strict"

# ---- what is durable before what ----
skipped("folder_not_synced", "the names in a family's folder are not synced (I2)",
        "store/publish.c:check_folder", "shf_dir_sync(c->s, fd)", COMMIT + "next_save" + CUT)
skipped("stage_not_synced", "the stage is not synced before the manifest (I2)",
        "store/publish.c:settle", "shf_dir_sync(c->s, c->g->dir)", COMMIT + "next_save" + CUT)
skipped("manifest_not_synced", "the bytes of the manifest are not synced",
        "store/publish.c:write_manifest", "sys->ops->fsync(sys->arg, fd)",
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
        "store/trash.c:shf_trash_empty", "shf_dir_sync(s, s->dir)", COMMIT + "prune" + CUT)
skipped("aside_not_synced", "the folder of what is set aside is not synced",
        "store/aside.c:move_aside", "shf_dir_sync(s, aside)", COMMIT + "rewind_alone" + CUT)
skipped("rewind_not_synced", "the run is not synced after a step was set aside",
        "store/aside.c:move_aside", "shf_dir_sync(s, s->dir)", COMMIT + "rewind_alone" + CUT)
bug("text_not_synced", "journals, marks and identities are renamed into place unsynced",
    "store/tree.c:shf_text_put", "sys->ops->fsync(sys->arg, fd)",
    "MUTANT ? 0 : sys->ops->fsync(sys->arg, fd)", COMMIT + "rewind_alone" + CUT)
gullible("data_not_synced", "no writer syncs what it wrote (C3)", "engine/commit.c:fsync_submit",
         "save->fds[f] < 0", CUTS + "next_save" + CUT)
bug("smalls_not_synced", "index, sums and attached files are not synced (C5)",
    "engine/smalls.c:shf_smalls_sync", "i < smalls->n && rc == 0;",
    "!MUTANT && i < smalls->n && rc == 0;", CUTS + "next_save" + CUT)

# ---- the commit and its agreements ----
skipped("sizes_not_checked", "names and sizes in the stage are not compared with what was said",
        "store/publish.c:shf_stage_publish", "settle(&c)",
        STORE + "a_stage_that_is_not_as_its_writers_say_is_not_published")
bug("failed_fsync_asked_again", "a failed fsync of the manifest is tried once more and believed",
    "store/publish.c:write_manifest", "closed = sys->ops->close(sys->arg, fd);",
    "if (MUTANT && put >= 0 && rc < 0) rc = sys->ops->fsync(sys->arg, fd);"
    " closed = sys->ops->close(sys->arg, fd);", COMMIT + "each_call_of_a_save_may_fail")
skipped("lock_not_read_again", "a job whose lock was taken publishes all the same (C7)",
        "store/publish.c:finish", "shf_lock_check(c->s, c->err)",
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
    "engine/publishing.c:smalls_write", "return shf_smalls_sync(&smalls, rc, err);",
    "if (MUTANT && rc == 0) { save->publishing.turn = PUBLISH; rc = shf_stage_publish("
    "&save->run->store, &save->stage, &p->record.manifest, err); }"
    " return shf_smalls_sync(&smalls, rc, err);", CUTS + "next_save" + CUT)
bug("fsync_error_not_agreed", "the failed fsync of a rank other than the first is not told (I4)",
    "engine/moves.c:shf_save_drain_together", "shf_agree(team, shf_save_rc(save, err), err)",
    "shf_agree(team, MUTANT && team->rank ? 0 : shf_save_rc(save, err), err)",
    "sim/test_faults: a_failed_fsync_of_any_rank_fails_the_save_on_all")
bug("first_error_not_kept", "a write or fsync that failed leaves no trace in its save",
    "engine/moves.c:shf_save_io_done", "if (rc < 0) shf_save_stick(save, rc, &err);",
    "if (rc < 0 && !MUTANT) shf_save_stick(save, rc, &err);",
    "sim/test_faults: each_call_of_two_saves_on_small_may_fail")
bug("short_write_believed", "a write of fewer bytes than asked is taken for whole by the save",
    "engine/moves.c:shf_save_io_done", "else if (wrote && (uint64_t)io->result != io->len)",
    "else if (!MUTANT && wrote && (uint64_t)io->result != io->len)",
    "sim/test_inflight: a_write_that_stops_short_fails_the_save")
bug("refused_room_believed", "room that a file did not get is taken for made, of a save behind",
    "engine/moves.c:shf_save_io_done", "if (io->result < 0)",
    "if (io->result < 0 && !(MUTANT && io->op == SHF_IO_RESIZE))",
    "sim/test_lazy: room_that_is_refused_behind_is_told_by_the_commit")
blind("steps_not_compared", "ranks at different steps begin one save together",
      "engine/save.c:meet", "!(same & 1)", "sim/test_agree: ranks_at_different_steps_begin_none")
bug("plans_not_compared", "a rank whose state changed saves with the others' old plan",
    "engine/save_plan.c:shf_plan_get", "rc == 0 && same && lo != 0",
    "rc == 0 && (MUTANT ? plan != NULL : same && lo != 0)",
    "sim/test_agree: a_state_that_one_rank_made_anew_is_planned_by_all")
blind("digests_not_compared", "tensors as copied are not compared with blocks as written (I4)",
      "engine/sums_out.c:sum_files", "raw != sum_by_tensors(l, f, told)",
      "sim/test_tamper: a_byte_that_changes_between_nodes_while_saving_is_found")
bug("image_reused_early", "the next round writes over pages that are still being written (I10)",
    "engine/moves.c:one_round", "rc = shf_save_drain_together(save, &save->io, -1, err);",
    "rc = MUTANT ? 0 : shf_save_drain_together(save, &save->io, -1, err);",
    "sim/test_layouts: every_pair_where_each_rank_is_a_node_and_staging_is_small")
blind("replicas_not_compared", "replicas that differ are saved though comparing was asked for",
      "engine/travel.c:unpack_moves", "sums.digest != shf_get64(from)",
      "sim/test_agree: replicas_that_differ_are_told_when_asked")
bug("ranks_open_apart", "ranks open different directories, or with different rules",
    "engine/run.c:same_arguments", "rc < 0 || same == 1023", "rc < 0 || same == 1023 || MUTANT",
    "sim/test_agree: retention_rules_of_one_rank_alone_are_refused")
bug("shapes_not_compared", "ranks that describe one tensor differently are not told",
    "engine/schema.c:unite", "last->kind == TENSOR &&", "!MUTANT && last->kind == TENSOR &&",
    "sim/test_preview: ranks_that_disagree_are_named")
bug("attached_not_compared", "ranks attach different bytes under one name, and one of them wins",
    "engine/attach.c:unite", "last->crc != g[i].crc", "(last->crc != g[i].crc && !MUTANT)",
    "sim/test_agree: ranks_that_attach_different_bytes_are_told")
bug("image_given_away", "a save takes the image of one that is still being written (I10)",
    "engine/images.c:shf_image_take", "hi[2] ? finish(of, err) : 0",
    "hi[2] && !MUTANT ? finish(of, err) : 0",
    "sim/test_inflight: no_image_goes_to_the_next_save_while_a_failed_one_is_written")
bug("image_chosen_in_use", "all saves have the first image", "engine/images.c:shf_image_choose",
    "if (!((used | older) & 1u << i))", "if (!((used | older) & 1u << i) || MUTANT)",
    "sim/test_inflight: as_many_saves_are_in_flight_as_there_are_images")
bug("images_beyond_staging", "there are more images than the staging has room for",
    "engine/save_plan.c:images_fit", "window ? window / (one ? one : 1) : SHF_IMAGES_MAX",
    "window && !MUTANT ? window / (one ? one : 1) : SHF_IMAGES_MAX",
    "sim/test_inflight: images_are_no_more_than_the_staging_has_room_for")
gullible("image_of_the_ended_taken",
         "an image is set up while others copy into it for a save that has ended here (I10)",
         "engine/images.c:shf_image_is_free", "!m->dirty",
         "sim/test_lazy: a_save_that_ends_while_it_is_copied_is_no_other_ones")
blind("begun_the_long_way", "a lazy save asks for everything again at each begin",
      "engine/save.c:meet", "met == 0 && (same & 127) == 127 && hi[5] == 0",
      "sim/test_lazy: a_begin_is_one_agreement_and_opens_nothing")
bug("gate_open", "a tensor may change before it is copied", "engine/gates.c:slice_copied",
    "rc = wait_for(lz, s, timeout_ms)", "rc = MUTANT ? 0 : wait_for(lz, s, timeout_ms)",
    "sim/test_lazy: a_tensor_may_change_when_it_was_asked_for",
    "unit/test_gates: tensors_change_behind_their_gates_and_no_step_knows")
bug("gate_not_waiting", "who asks does not wait for a piece that somebody else copies",
    "engine/gates.c:wait_for", "calm = shf_pieces_settled(lz, slice, until)",
    "calm = MUTANT || shf_pieces_settled(lz, slice, until); if (MUTANT) return 0",
    "unit/test_gates: several_threads_copy_and_no_step_knows")
LATER = "sim/test_later: "
bug("read_before_it_is_put", "a slice is copied before it was brought (L5)",
    "engine/lazy.c:pick", "(lz->put && !lz->put[slice])", "(!MUTANT && lz->put && !lz->put[slice])",
    LATER + "the_files_are_those_of_slices_that_were_there",
    "unit/test_gates: a_slice_is_copied_when_it_is_brought",
    "sim/test_weave: slices_are_copied_when_they_are_brought")
blind("put_elsewhere", "a slice that is brought elsewhere is read where the state says",
      "engine/lazy.c:shf_piece_slice", "save->lazy->data && save->lazy->data[slice]",
      LATER + "a_state_need_have_no_memory")
bug("put_unheard", "threads that had nothing to do do not hear of what is brought",
    "engine/gates.c:shf_lazy_put", "rc == 0 && i < lz->tasks_n",
    "!MUTANT && rc == 0 && i < lz->tasks_n",
    "unit/test_gates: what_is_brought_is_copied_though_nobody_asks")
blind("unput_committed", "a save is committed of which not all was brought",
      "engine/gates.c:shf_lazy_unasked", "unput >= 0", LATER + "one_that_is_not_brought_is_named")
blind("begun_over_unput", "a save begins that may wait for what is not brought",
      "engine/save.c:may_begin", "!s->over && shf_lazy_unput(s) >= 0",
      LATER + "one_that_is_not_brought_is_named")
bug("checked_when_open", "a tensor is compared when somebody may change it already",
    "engine/gates.c:check", "first = lz->checks[slice] == SHF_UNCHECKED;",
    "first = MUTANT || lz->checks[slice] == SHF_UNCHECKED;",
    "unit/test_gates: a_check_is_over_when_a_gate_opens")
bug("loaded_over_unput", "a load waits for what its caller must bring",
    "engine/images.c:shf_image_take", "of ? is_unput(of) ?", "of ? !MUTANT && is_unput(of) ?",
    LATER + "a_load_takes_no_image_that_is_not_full")
bug("all_slices_too_soon", "all slices may change when the last one is copied",
    "engine/gates.c:shf_lazy_copied", "size_t s = 0;",
    "size_t s = MUTANT ? save->state->n - 1 : 0;",
    LATER + "all_slices_are_asked_for_at_once")
WEAVE = "sim/test_weave: weights_change_behind_their_gates_and_every_average_is_made_once"
EMA = "sim/test_ema: "
bug("gate_before_averages", "a tensor may change when it is copied and not averaged (L3)",
    "engine/lazy.c:shf_piece_copy",
    "&due, &a); shf_emas_update(save->state, save->fresh, &due, INT64_MAX);"
    " if (done(lz, p, &a))", "MUTANT ? NULL : &due, &a); bool early = MUTANT && done(lz, p, &a);"
    " shf_emas_update(save->state, save->fresh, &due, INT64_MAX);"
    " if (early || (!MUTANT && done(lz, p, &a)))", WEAVE)
blind("averages_copied_early", "averages are copied while they are made (L3)",
      "engine/lazy.c:pick", "before != slice && lz->done[before] < pieces_in(lz, before)", WEAVE)
bug("gate_before_slot", "what is not staged may change when somebody begins to copy it",
    "engine/lazy.c:count_slotted", "if (more < 0)", "if (MUTANT ? more > 0 : more < 0)",
    "unit/test_gates: what_is_not_staged_changes_behind_its_gate")
blind("slot_while_it_is_written", "a slot goes to the next segment before it is written",
      "engine/slots.c:shf_slots_take", "a->busy >> slot & 1",
      "sim/test_in_place: an_image_is_as_large_as_its_slots")
gullible("in_place_in_memory", "a step that is not in its image is kept in memory",
         "engine/save.c:shf_save_fits_memory", "!save->plan->slotted",
         "sim/test_in_place: a_save_to_memory_alone_is_refused")
CAST = "sim/test_cast: "
gullible("cast_from_what_is_not_there", "a weight is cast before its masters are in the image (K3)",
         "engine/slots.c:next_untaken", "shf_cast_is_ready(save, seg)",
         "sim/test_weave: weights_are_cast_from_masters_that_are_whole")
blind("cast_from_masters_of_others", "a weight is cast from a segment that others fill, too (K1)",
      "engine/cast.c:is_here", "!f->own[i]",
      CAST + "the_files_are_those_of_weights_that_are_staged")
gullible("cast_from_the_last_round", "a weight is cast from what another round wrote over (K2)",
         "engine/match.c:lay_out_save", "w->rounds <= 1",
         CAST + "what_does_not_fit_in_one_round_is_staged")
gullible("cast_not_compared", "SHEAF_CHECK does not compare a weight with its cast",
         "engine/lazy.c:shf_piece_cast_came", "lz->cast_sums[slice] == 0",
         CAST + "a_weight_that_is_no_cast_is_named")
bug("averages_fail_with_the_save", "who asks a save that has failed changes what is not averaged",
    "engine/lazy.c:pick", "lz->stop ? lz->due[slice]", "lz->stop ? !MUTANT * lz->due[slice]",
    WEAVE, EMA + "averages_are_made_behind_begin_and_before_the_gate")
bug("averages_left_behind", "what a save has not averaged is forgotten when it ends",
    "engine/lazy.c:shf_lazy_stop", "shf_lazy_update(save);", "if (!MUTANT) shf_lazy_update(save);",
    WEAVE, EMA + "averages_are_made_behind_begin_and_before_the_gate")
bug("averages_of_two_steps_at_once", "a begin does not finish what the save before left (E2)",
    "engine/ema.c:shf_emas_count", "shf_lazy_update(save);", "if (!MUTANT) shf_lazy_update(save);",
    EMA + "averages_are_made_behind_begin_and_before_the_gate")
bug("averages_changed_uncopied", "averages change before those of the step before are copied (E1)",
    "engine/ema.c:shf_emas_count", "let_copies_end(state, e);",
    "if (!MUTANT) let_copies_end(state, e);", WEAVE)
bug("dropped_not_averaged", "a begin that gives no save makes no averages",
    "engine/save.c:finish_averages", "save->due && !shf_lazy_is_behind(save)",
    "!MUTANT && save->due && !shf_lazy_is_behind(save)", WEAVE,
    EMA + "a_save_without_an_image_is_averaged_once")
bug("away_not_averaged", "a save for memory alone that no agent keeps makes no averages",
    "engine/save.c:begin_met", "finish_averages(save);",
    "if (!MUTANT || !is_away(save)) finish_averages(save);",
    EMA + "a_save_that_no_agent_keeps_is_averaged_once")
bug("ignored_not_asked_for", "nobody need ask for weights that are averaged and not saved",
    "engine/turns.c:turns_sort", "!state->slices[state->emas[k].first + i].empty",
    "!MUTANT && !state->slices[state->emas[k].first + i].empty",
    EMA + "weights_that_are_ignored_have_averages_and_gates")
gullible("unasked_saved", "a slice that nobody asked for is saved as it comes",
         "engine/gates.c:shf_lazy_unasked",
         "!save->lazy || atomic_load(&save->lazy->unasked) == 0",
         "sim/test_lazy: a_slice_that_nobody_asked_for_is_named_and_the_save_goes_on")
bug("sent_before_copied", "bytes travel to other nodes before they are copied",
    "engine/gates.c:shf_lazy_together", "if (rc == 0 && open)", "if (rc == 0 && open && !MUTANT)",
    "sim/test_lazy: a_tensor_may_change_when_it_was_asked_for_on_two_nodes")
bug("image_of_uncopied_taken", "the image of a save is given away while it is copied (I10)",
    "engine/images.c:shf_image_take", ": is_busy(of) : 0", ": !MUTANT && is_busy(of) : 0",
    "sim/test_lazy: who_begins_one_too_many_copies_the_oldest_or_is_dropped")
bug("given_up_on_one_rank", "who lives on believes in a save whose image has gone to the next",
    "engine/images.c:finish_copies", "shf_save_stick(save, rc, err);",
    "if (!MUTANT) shf_save_stick(save, rc, err);",
    "sim/test_lazy: the_image_of_a_save_that_was_given_up_goes_to_the_next")
blind("early_change_not_seen", "a tensor that changed before its gate is not told",
      "engine/gates.c:same_as_copied", "sums.digest != copied",
      "sim/test_lazy: a_tensor_that_changes_before_its_gate_is_named")
bug("saved_beside_a_newer", "a step is saved that is older than the newest",
    "engine/save_stage.c:find_parent", "if (n.newest > step)", "if (n.newest > step && !MUTANT)",
    OPS + "a_step_older_than_the_newest_is_not_saved")
bug("saved_past_a_branch", "who loaded an older step saves on top of the newest",
    "engine/save_stage.c:find_parent",
    "if (run->parent >= 0 && n.newest > run->parent)",
    "if (run->parent >= 0 && n.newest > run->parent && !MUTANT)",
    OPS + "who_loaded_an_older_step_rewinds_before_saving")
bug("parent_session_stale", "a step names the session of its grandparent as its parent's",
    "engine/commit.c:succeed",
    "memcpy(run->parent_session, save->session, sizeof(run->parent_session));",
    "if (!MUTANT || !run->parent_session[0])"
    " memcpy(run->parent_session, save->session, sizeof(run->parent_session));",
    OPS + "commits_prune_by_the_rules_of_the_run")
blind("time_not_kept", "a commit whose time is up waits for the writes all the same",
      "engine/moves.c:shf_save_drain_together",
      "until_ns >= 0 && slice_ms(save->run, until_ns) == 0",
      "sim/test_deadline: a_commit_returns_when_its_time_is_up_and_gets_there")
gullible("publish_begun_too_late", "a publish is begun that takes longer than there is time",
         "engine/commit.c:has_time", "l->asks || save->refused",
         "sim/test_deadline: what_cannot_be_published_in_time_is_not_begun")
bug("speed_by_who_asks", "writes count from when somebody took them, not from when they were done",
    "engine/moves.c:shf_save_io_done", "atomic_store(&save->write_to_ns, io->done_ns);",
    "atomic_store(&save->write_to_ns, MUTANT ? shf_now(save->run) : io->done_ns);",
    "sim/test_deadline: who_asks_late_does_not_take_the_disk_for_slow")
bug("told_before_publish", "a step is announced before it is published",
    "engine/commit.c:shf_save_commit", "rc = finish(save, &limit, &again, err);",
    "{ if (MUTANT && run->team.rank == 0) announce(save);"
    " rc = finish(save, &limit, &again, err); }",
    "sim/test_done: of_a_step_that_failed_or_is_in_doubt_nothing_is_said")
bug("done_in_doubt", "done files tell of a step that may go with the power",
    "engine/commit.c:conclude", "shf_save_doubt(save);",
    "{ shf_save_doubt(save); if (MUTANT && run->team.rank == 0) announce(save); }",
    "sim/test_done: of_a_step_that_failed_or_is_in_doubt_nothing_is_said")
bug("done_not_synced", "the names of done files are not synced",
    "store/done.c:sync_dir", "dir < 0 ? dir :", "dir < 0 || MUTANT ? dir :",
    "sim/test_done: a_power_cut_leaves_no_done_file_or_a_right_one_strict")
blind("done_in_place_of_a_link", "a done file takes the place of what is no file",
      "store/done.c:put", "rc >= 0 && st.type != SHF_T_FILE",
      "sim/test_done: what_is_no_file_is_left_as_it_is")
bug("allocation_not_agreed", "a rank without memory for an exchange leaves the others in it",
    "group/group.c:exchange",
    "rc = shf_agree(t, lens_reserve(p.in_len, t, &fresh, \"exchange\", err), err);",
    "rc = lens_reserve(p.in_len, t, &fresh, \"exchange\", err);"
    " if (!MUTANT) rc = shf_agree(t, rc, err);",
    "unit/test_group: an_allocation_that_fails_on_one_rank_is_enomem_on_all")
bug("last_stripe_not_told", "the home of the last stripe of a box is not told of it",
    "engine/home.c:homes_of", "shf_home_of(l, ranks, f, hi)",
    "shf_home_of(l, ranks, f, MUTANT ? lo : hi)",
    "sim/test_rows: a_tensor_of_several_stripes_has_several_homes")

# ---- sums and digests ----
bug("short_block_sum", "the sum of the last, short block of a file is finished as a whole one",
    "engine/sums_out.c:sum_files", "blocks[b] ^= shf_crc64_ones(n);",
    "blocks[b] ^= shf_crc64_ones(MUTANT ? SHF_BLOCK : n);",
    "sim/test_rows: identity_is_the_name_and_not_the_order")
bug("header_not_counted", "the bytes of the header count in no sum",
    "engine/moves.c:shf_copy_headers", "if (!has_header(save, g)) continue;",
    "if (!has_header(save, g)) continue; if (MUTANT) { if (have != g->file) {"
    " shf_buf_reset(&header); rc = shf_layout_header(l, g->file, &header, err); have = g->file; }"
    " end = g->hi < end ? g->hi : end; if (rc == 0) memcpy(shf_own_image(save) + g->image,"
    " header.data + g->lo, (size_t)(end - g->lo)); came(shf_own_ctl(save, i)); continue; }",
    "sim/test_rows: identity_is_the_name_and_not_the_order")
bug("digest_shifted_wrong", "a tensor's digest is combined with a length that is one too long",
    "engine/copy.c:horner_end", "shf_crc64_shift(h->all, h->bytes - h->all_end)",
    "shf_crc64_shift(h->all, h->bytes - h->all_end + MUTANT)",
    "unit/test_copy: each_way_moves_the_box_and_sums_it_by_block_and_by_tensor")
bug("digest_of_what_was_there", "a digest is taken of the page before the bytes come into it",
    "engine/copy.c:horner_copy", "h->sum = shf_crc64_copy(h->sum, to, from, k, h->past);",
    "if (MUTANT) { h->sum = shf_crc64_raw(h->sum, to, k); memcpy(to, from, k); } else"
    " h->sum = shf_crc64_copy(h->sum, to, from, k, h->past);",
    "unit/test_copy: each_way_moves_the_box_and_sums_it_by_block_and_by_tensor")
bug("sums_joined_wrong", "two sums are joined as if the second run were a byte shorter",
    "base/crc64.c:shf_crc64_join", "shf_crc64_shift(a, b_bytes)",
    "shf_crc64_shift(a, b_bytes - (MUTANT && b_bytes))",
    "unit/test_crc64: joined_sums_are_the_sum_of_the_joined")
bug("shift_of_a_far_byte", "a shift forgets what lies beyond 4 GiB", "base/crc64.c:zeros",
    "uint64_t product = ONE;", "uint64_t product = ONE; if (MUTANT) n = (uint32_t)n;",
    "unit/test_crc64: shifts_of_any_distance_agree_with_square_and_multiply")
gullible("blocks_not_checked", "a load checks no block", "engine/catalog.c:shf_block_check",
         "got == want", "sim/test_damaged: a_load_of_one_family_does_not_mind_damage_to_the_data")
gullible("slice_blocks_not_checked", "a slice that is read by itself checks no block",
         "engine/catalog.c:shf_blocks_check", "got == want",
         "sim/test_read: damage_is_found_by_the_slices_whose_blocks_it_touches")
blind("digest_not_checked", "a load does not compare a whole tensor with its digest",
      "engine/prove.c:compare", "check && x->bytes == lt->bytes && x->got != lt->digest",
      "sim/test_read: a_digest_that_was_written_wrong_fails_the_load_of_its_tensor")
gullible("verify_finds_nothing", "verify finds every block right", "engine/verify_data.c:check",
         "got == want", "sim/test_verify: a_flipped_bit_names_file_block_and_tensor")
bug("table_page_not_checked", "a page of the table of sums is believed unread",
    "engine/peek.c:need", "shf_crc64(step->sums_bytes + at, (size_t)len) !=",
    "!MUTANT && shf_crc64(step->sums_bytes + at, (size_t)len) !=",
    "sim/test_read: every_flip_in_the_table_of_sums_is_found_by_a_read")
blind("message_not_checked", "what comes from another node is not compared with its digest",
      "engine/shared.c:scatter", "proof(taken.digest, v->tensor, t, &v->box) != *told",
      "sim/test_tamper: a_byte_that_changes_between_nodes_while_loading_is_found")
bug("summed_before_taken", "an image is summed before the others take from it, not after",
    "engine/shared.c:run_kind", "rc = share_round(ld, first + k, rc, err); if (rc < 0) return rc;"
    " rc = look_round(ld, first + k, err);",
    "if (MUTANT && rc == 0) rc = look_round(ld, first + k, err);"
    " rc = share_round(ld, first + k, rc, err); if (rc < 0) return rc;"
    " if (!MUTANT) rc = look_round(ld, first + k, err);",
    "sim/test_tamper: a_byte_of_an_image_that_changes_before_it_is_scattered_is_found")
bug("short_read_believed", "a read of fewer bytes than asked is taken for whole by the load",
    "engine/reads.c:check", "if ((uint64_t)got != n)", "if ((uint64_t)got != n && !MUTANT)",
    "sim/test_tamper: a_read_that_stops_short_fails_the_load")
bug("read_not_tried_again", "one error of a disk fails a load", "engine/reads.c:shf_read_finish",
    "r->req.result < 0 && tries < TRIES", "!MUTANT && r->req.result < 0 && tries < TRIES",
    "sim/test_tamper: a_read_that_fails_twice_is_tried_again_and_counted")
bug("slot_reused_early", "a read of a load goes into memory that is still looked at",
    "engine/flow.c:run_to", "s->head - s->tail < s->slots_n",
    "s->head - s->tail < s->slots_n + MUTANT",
    "sim/test_read: a_load_past_the_page_cache_opens_few_files_twice_at_a_time")
bug("headers_believed", "headers that tell another story than the sums are believed",
    "engine/catalog.c:match_sums", "if (r.file != t->file ||",
    "if (MUTANT) { t->digest = r.digest; continue; } if (r.file != t->file ||",
    "sim/test_verify: a_header_that_tells_another_story_than_the_sums_is_found")
gullible("size_not_checked", "a file's size is not compared with the manifest's",
         "engine/catalog.c:check_size", "bytes == want",
         "sim/test_damaged: each_damage_has_its_outcome_and_its_sentence")
bug("extra_not_seen", "verify does not see files that nobody named",
    "engine/verify_dir.c:find_extra", "if (!bsearch(", "if (!MUTANT && !bsearch(",
    "sim/test_verify: what_the_manifest_does_not_name_is_extra")
bug("attached_not_summed", "verify does not sum what was attached",
    "engine/verify_dir.c:check_small", "step->sound && crc != m->crc",
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
    "store/recover.c:alive_proof", "if (sys->ops->owner_is_dead(sys->arg, &owner) ||",
    "if (MUTANT || sys->ops->owner_is_dead(sys->arg, &owner) ||",
    STORE + "recovery_takes_only_stages_of_the_proven_dead")
bug("locked_stage_deleted", "a stage whose proof is locked is taken for a dead job's",
    "store/recover.c:alive_proof", "if (rc < 0 && !shf_lock_is_absent(rc)) goto out;",
    "if (rc < 0 && !shf_lock_is_absent(rc)) { proof = MUTANT ? DEAD : ALIVE; goto out; }",
    STORE + "recovery_takes_only_stages_of_the_proven_dead")
bug("locks_that_exclude_nobody", "a lock proves the dead although locks exclude nobody here",
    "store/recover.c:kernel_let_go", "excludes = sys->ops->lock(sys->arg, fd, true) == -EAGAIN;",
    "excludes = sys->ops->lock(sys->arg, fd, true) == -EAGAIN || MUTANT;",
    STORE + "a_kernel_that_let_go_of_the_lock_proves_the_dead_of_another_namespace")
bug("reused_pid_alive", "another process of the same number is taken for the owner",
    "sys/ident.c:shf_real_owner_is_dead", "process.start != owner->start;",
    "process.start != owner->start && !MUTANT;", "unit/test_sys: an_owner_is_dead_only_on_proof")
bug("other_namespace_dead", "a number of another pid namespace is looked up in ours",
    "sys/ident.c:shf_real_owner_is_dead", "owner->pid_ns != self.pid_ns",
    "(owner->pid_ns != self.pid_ns && !MUTANT)",
    "unit/test_sys: an_owner_is_dead_only_on_proof")
skipped("rewind_not_finished", "a rewind that was cut is left as it is",
        "store/recover.c:shf_store_recover", "shf_rewind_finish(s, err)",
        COMMIT + "rewind_alone" + CUT)
bug("journal_by_number", "a rewind sets aside what has the number, whatever it is",
    "store/aside.c:apply", "rc = rc && strcmp(id, want) == 0 ? move_aside",
    "rc = rc && (MUTANT || strcmp(id, want) == 0) ? move_aside",
    STORE + "a_stale_journal_leaves_steps_saved_later_alone")
bug("keep_mark_ignored", "prune takes a step that is marked keep", "store/trash.c:why_stays",
    "if (e->mark == 'k')", "if (e->mark == 'k' && !MUTANT)",
    PRUNE + "prune_keeps_what_no_newer_verified_step_dominates", OPS + "marks_keep")
bug("verified_step_pruned", "prune takes the step that was verified itself",
    "store/trash.c:why_stays", "if (e->step >= verified->step)",
    "if (MUTANT && e->step == verified->step) return NULL; if (e->step >= verified->step)",
    PRUNE + "prune_keeps_what_no_newer_verified_step_dominates")
bug("branches_not_told_apart", "prune follows a parent by its number alone",
    "store/trash.c:find_branch", "strcmp(e->session, from->parent_session) != 0",
    "(strcmp(e->session, from->parent_session) != 0 && !MUTANT)",
    PRUNE + "a_parent_of_another_session_is_another_branch")
bug("prune_unverified", "prune does not read the step that the others go for (I9)",
    "engine/ops.c:shf_run_prune", "rc == 0 && !dry && would && run->verified != newest",
    "!MUTANT && rc == 0 && !dry && would && run->verified != newest",
    OPS + "nothing_goes_when_the_newest_step_is_not_sound")
bug("grace_ignored", "pruned bytes go at once", "store/trash.c:shf_grace_is_over",
    "sys->ops->wall_s(sys->arg) - st.mtime_s >= grace_s;",
    "(MUTANT || sys->ops->wall_s(sys->arg) - st.mtime_s >= grace_s);",
    PRUNE + "the_grace_keeps_pruned_bytes_until_it_is_over")
bug("read_step_pruned", "prune takes a step that somebody reads", "store/trash.c:remove_step",
    "if (fd >= 0 && rc < 0 && shf_lock_is_absent(rc))",
    "if (fd >= 0 && rc < 0 && (MUTANT || shf_lock_is_absent(rc)))",
    PRUNE + "prune_never_crosses_branches_nor_takes_what_is_read_or_loaded")
bug("latest_falls_back", "the newest step is damaged: the one before it is taken, and nobody told",
    "store/list.c:latest_one", "if (e->state == SHF_FOREIGN || e->remains)",
    "if (e->state == SHF_FOREIGN || e->remains || (MUTANT && e->state == SHF_DAMAGED))",
    STORE + "latest_is_the_newest_good_step_and_never_falls_back_over_damage")
bug("bad_mark_ignored", "a step that is marked bad is the newest",
    "store/list.c:is_passed", "return e->mark == 'b';",
    "return e->mark == 'b' && !MUTANT;",
    STORE + "latest_is_the_newest_good_step_and_never_falls_back_over_damage")
skipped("proof_not_locked", "a save does not lock the proof that it lives",
        "store/stage.c:shf_stage_alive", "lock_alive(sys, fd)",
        STORE + "a_kernel_that_let_go_of_the_lock_proves_the_dead_of_another_namespace")
skipped("mark_inherited", "a new step has the mark of an old one of its number",
        "store/stage.c:shf_stage_room", "shf_mark_clear(s, step)",
        STORE + "a_mark_does_not_pass_to_a_new_step_of_that_number")
bug("files_not_looked_at", "a step whose files are gone is the newest", "store/list.c:look",
    "if (rc == 0 && files)", "if (rc == 0 && files && !MUTANT)",
    STORE + "a_step_touched_by_hand_is_gone_or_damaged_and_stops_nobody")
bug("rewinds_begin_anew", "a count of rewinds that cannot be read is nothing",
    "store/aside.c:rewinds_read", "return odd || rc == -ENOENT",
    "return MUTANT || odd || rc == -ENOENT",
    "unit/test_corners: a_rewind_in_place_that_is_not_counted_has_failed")
bug("unread_is_damaged", "a step that the kernel would not show is called damaged",
    "store/list.c:is_unread", "why->code == SHEAF_EIO &&", "!MUTANT && why->code == SHEAF_EIO &&",
    STORE + "a_list_calls_no_step_damaged_that_it_could_not_read")
blind("number_not_compared", "a step renamed by hand is taken for that step",
      "store/list.c:check_names", "m->step != step",
      STORE + "a_step_of_another_number_or_run_is_damaged_by_number")
blind("bad_step_vouches", "a step that is damaged or marked bad lets older ones go",
      "store/trash.c:decide",
      "j->verified && !shf_entry_is_good(j->verified)",
      PRUNE + "prune_keeps_what_no_newer_verified_step_dominates")
blind("damaged_step_pruned", "prune takes a damaged step without a person's word",
      "store/trash.c:why_stays", "e->state == SHF_DAMAGED",
      STORE + "a_step_touched_by_hand_is_gone_or_damaged_and_stops_nobody")
bug("loaded_step_pruned", "prune takes the step that the run was loaded from",
    "engine/ops.c:rules", ".keep = run->loaded", ".keep = MUTANT ? -1 : run->loaded",
    OPS + "the_loaded_step_is_never_pruned")
bug("verified_across_rewind", "a number verified before a rewind counts after it",
    "engine/ops.c:shf_run_rewind", "if (run->verified > step)",
    "if (run->verified > step && !MUTANT)",
    "sim/test_agree: what_a_rewind_set_aside_is_not_verified_under_its_old_number")
gullible("child_is_parent", "a forked child uses its parent's threads and files",
         "engine/run.c:shf_run_is_ours", "run->sys->ops->pid(run->sys->arg) == run->pid",
         OPS + "a_forked_child_closes_its_memory_only")

# ---- who writes what ----
bug("page_owner_off_by_one", "an edge page goes to who ends in it and not to who begins it",
    "plan/deal.c:run_trim", "t.lo = (r->lo + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;",
    "t.lo = (r->lo + (MUTANT ? 0 : SHF_PAGE - 1)) / SHF_PAGE * SHF_PAGE;"
    " if (MUTANT && t.lo < s->lo) t.lo = s->lo;",
    "unit/test_turns: an_edge_page_goes_to_the_holder_of_its_first_byte")
bug("edge_page_of_two", "an edge page is given to both its holders", "plan/deal.c:run_trim",
    "t.hi = r->hi == s->hi ? r->hi : r->hi / SHF_PAGE * SHF_PAGE;",
    "t.hi = r->hi == s->hi ? r->hi : r->hi / SHF_PAGE * SHF_PAGE;"
    " if (MUTANT) { t.lo = r->lo / SHF_PAGE * SHF_PAGE; t.lo = t.lo < s->lo ? s->lo : t.lo;"
    " t.hi = (r->hi + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;"
    " t.hi = t.hi > s->hi ? s->hi : t.hi; }",
    "unit/test_deal: every_byte_has_one_writer_and_one_source")
bug("edge_page_of_the_last", "an edge page goes to the holder of its last byte",
    "plan/parts.c:first_look", "at < f->at", "(MUTANT ? at > f->at : at < f->at)",
    "unit/test_turns: an_edge_page_goes_to_the_holder_of_its_first_byte")
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
    "plan/shard.c:shf_slice_shard", "slice->start[dim] = start;",
    "slice->start[dim] = start - (MUTANT && count % n && i && start > 0);",
    "unit/test_box: shards_are_those_of_chunk")
bug("flat_range_off_by_one", "a flat range begins one item late", "engine/state.c:take_memory",
    "m->lo = in->flags & SHEAF_FLAT ? in->flat_start : 0;",
    "m->lo = in->flags & SHEAF_FLAT ? in->flat_start + (MUTANT && in->flat_count > 1) : 0;",
    "unit/test_state: a_flat_window_is_what_is_here",
    "sim/test_rows: a_flat_range_may_cut_a_tensor_at_any_item_and_be_empty")
bug("runs_joined_over_gaps", "rows join although memory has a gap between them",
    "plan/runs.c:level_add", "mem_step == (int64_t)r->n[l - 1] * r->mem_step[l - 1]",
    "(MUTANT || mem_step == (int64_t)r->n[l - 1] * r->mem_step[l - 1])",
    "unit/test_runs: runs_visit_every_unit_in_order")
bug("transposed_tile_again", "each tile of transposed memory takes the columns of the first",
    "engine/copy.c", "uint8_t *col = b + (ptrdiff_t)u * b_step;",
    "uint8_t *col = b + (ptrdiff_t)(MUTANT ? 0 : u) * b_step;",
    "unit/test_copy: each_way_moves_the_box_and_sums_it_by_block_and_by_tensor")
bug("bf16_truncates", "fp32 becomes bf16 by cutting, not by rounding", "base/convert.c:bf16_down",
    "uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;",
    "uint32_t rounded = (bits + (MUTANT ? 0 : 0x7fff + (bits >> 16 & 1))) >> 16;",
    "unit/test_dtype: floats_round_as_quotients_do")
bug("nan_becomes_infinite", "a NaN of fp32 rounds to an infinity of bf16",
    "base/convert.c:bf16_down", "return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ?",
    "return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 && !MUTANT ?",
    "unit/test_dtype: nan_stays_nan_and_quiet")
bug("pattern_ignored", "what was to be left out is saved", "engine/schema.c:shf_ignored",
    "fnmatch(ignore[i], text, 0) == 0", "!MUTANT && fnmatch(ignore[i], text, 0) == 0",
    "sim/test_forgiven: ignored_patterns_are_neither_saved_nor_loaded_but_reported")

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
    "format/safetensors.c:check_names", "if (!strcmp(a->t.name, b->t.name))",
    "if (!strcmp(a->t.name, b->t.name) && !MUTANT)",
    "unit/test_safetensors: hostile_headers_are_refused_with_a_sentence")
bug("product_may_wrap", "the product of the dimensions may overflow",
    "format/safetensors.c:read_shape",
    "else if (!shf_mul64(&product, product, dim) || product > INT64_MAX)",
    "else if (MUTANT) product *= dim;"
    " else if (!shf_mul64(&product, product, dim) || product > INT64_MAX)",
    "unit/test_safetensors: hostile_headers_are_refused_with_a_sentence")
bug("depth_unbounded", "JSON may nest deeper than there is room for", "format/json.c:push",
    "if (j->depth == SHF_JSON_DEPTH_MAX)", "if (j->depth == SHF_JSON_DEPTH_MAX + MUTANT)",
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
    "engine/step.c:shf_step_follow", "step->run->foreign ?", "step->run->foreign || MUTANT ?",
    "sim/test_damaged: each_damage_has_its_outcome_and_its_sentence")
bug("newer_asked_for_ignored", "what a caller asks of a newer sheaf is passed over",
    "api/entry.c:shf_struct_in", "if (((const uint8_t *)from)[i])",
    "if (((const uint8_t *)from)[i] && !MUTANT)",
    "unit/test_api: structs_of_other_sizes_are_honoured")

# ---- the machine and the group ----
bug("links_followed", "a link is followed where that is forbidden", "sys/posix.c:open_flags",
    "flags & SHF_O_NOFOLLOW ?", "flags & SHF_O_NOFOLLOW && !MUTANT ?",
    "unit/test_sys: a_link_is_never_followed_where_that_is_asked")
bug("real_rename_replaces", "the real machine's rename replaces what is there",
    "sys/posix.c:shf_real_rename", "if (noreplace) {", "if (noreplace && !MUTANT) {",
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
bug("deadline_ignored", "a rank waits for the dead as long as they are dead",
    "group/group.c:shf_allreduce", "ops->allreduce(ops->arg, x, n, op, t->timeout_ms)",
    "ops->allreduce(ops->arg, x, n, op, MUTANT ? INT32_MAX : t->timeout_ms)",
    "unit/test_group: a_rank_later_than_the_deadline_loses_the_group_for_those_that_waited")
bug("last_rank_not_heard", "an agreement does not hear the last rank", "group/group.c:shf_agree",
    "first = rc == 0 ?", "first = rc == 0 || (MUTANT && t->rank > 0 &&"
    " t->rank == t->ranks - 1) ?",
    "unit/test_group: agreement_gives_all_the_code_the_sentence_and_the_rank_of_the_lowest")
bug("file_system_not_proved", "ranks that see different file systems are not told",
    "store/store.c:shf_store_proof_read", "rc == -ENOENT ||",
    "MUTANT ? (rc = 0) : rc == -ENOENT ||",
    STORE + "a_proof_is_seen_through_the_same_directory_only")
bug("missing_tensor_is_no_run", "a tensor that is not stored is ENOENT: start afresh",
    "engine/load.c:decide_absent", "return shf_fail(err, SHEAF_ELAYOUT,",
    "return shf_fail(err, MUTANT ? SHEAF_ENOENT : SHEAF_ELAYOUT,",
    "sim/test_forgiven: a_renamed_layer_lists_its_tensors")
DERIVED = "sim/test_derived: "
gullible("any_weight_is_a_rounded_master", "a weight of any type is cast from any master",
         "engine/load.c:derive", "is_rounded_master(s, &l->tensors[i])",
         DERIVED + "nothing_else_is_made_from_a_master")
blind("tie_of_a_master_lost", "a weight is not looked for under what it is tied to in the step",
      "engine/load.c:find_stored", "i < 0 && (tied = shf_layout_tied_to(l, family, name))",
      DERIVED + "a_tied_weight_is_rounded_from_what_its_master_is_tied_to")
bug("derived_without_asking", "weights are derived though nobody asked", "engine/load.c:derive",
    "!(ld->flags & SHEAF_DERIVE)", "!(ld->flags & SHEAF_DERIVE || MUTANT)",
    DERIVED + "weights_are_derived_only_when_asked_and_from_a_master_that_is_there")
bug("sizes_may_wrap", "a size that overflows is allocated all the same", "base/mem.c:shf_alloc",
    "if (!shf_mul(&bytes, n, size))", "bytes = n * size; if (!MUTANT && !shf_mul(&bytes, n, size))",
    "unit/test_mem: nothing_can_be_allocated_and_too_much_can_not")
bug("short_memory_taken", "memory of another process is mapped though it is shorter than it says",
    "sys/passfd.c:shf_memory_check", "(uint64_t)st.st_size >= n",
    "(MUTANT || (uint64_t)st.st_size >= n)",
    "unit/test_sys: memory_that_is_not_what_it_says_is_not_taken")

# ---- what is in memory ----
MEMORY = "sim/test_memory: "
bug("card_stays_whole", "a card says that its image is a step while somebody copies into it (M1)",
    "engine/tier.c:shf_tier_reuse", "make_nothing(t, image);",
    "if (!MUTANT) make_nothing(t, image);",
    MEMORY + "an_image_that_is_copied_into_is_no_step")
gullible("rewound_is_found", "a step in memory is taken though the run was rewound since",
         "engine/recall.c:shf_recall_follows",
         "disk->known == disk->newest && (r->base == on || r->next == on)",
         MEMORY + "what_was_rewound_is_not_found_in_memory")
bug("failed_stays_in_memory", "a save that failed lives on in memory (I7)",
    "engine/save.c:shf_save_settle", "shf_tier_unsaved(save);",
    "if (!MUTANT) shf_tier_unsaved(save);",
    MEMORY + "a_save_that_failed_is_not_in_memory_and_one_whose_time_was_up_is")
bug("flush_hides_newer", "a flush of what was due hides what is newer in memory",
    "engine/flush.c:still", "if (rc == 0 && !disk.exists) {",
    "if (!MUTANT && rc == 0 && !disk.exists) {",
    MEMORY + "a_flush_of_what_was_due_hides_nothing_newer")
skipped("rewind_in_place_uncounted", "a rewind to the newest on disk is not told to memory",
        "store/aside.c:shf_store_rewind", "count_rewind(s, err)",
        MEMORY + "a_rewind_to_the_newest_on_disk_leaves_nothing_in_memory_behind")
bug("doubt_not_stamped", "what follows a step in doubt is not found where that step is there",
    "engine/tier.c:stamp", "run->tier.doubt ? run->tier.doubt : on",
    "run->tier.doubt && !MUTANT ? run->tier.doubt : on",
    MEMORY + "after_a_step_in_doubt_what_is_in_memory_is_found")
bug("coming_not_noted", "a step in memory knows nothing of the one that is being published",
    "engine/tier.c:stamp", "run->tier.coming ?", "run->tier.coming && !MUTANT ?",
    MEMORY + "what_comes_to_memory_while_a_step_is_published_is_found")
bug("readers_count", "a reader's loads count as tries of what is in memory",
    "engine/load.c:count_try",
    "run->of && !(run->opts.flags & SHEAF_READONLY) && is_first_try(step)",
    "run->of && (MUTANT || (!(run->opts.flags & SHEAF_READONLY) && is_first_try(step)))",
    MEMORY + "readers_cost_a_job_nothing")

# ---- of several nodes ----
NODES = "sim/test_nodes: "
bug("had_is_ignored", "a rank reads a block that its node does not have", "plan/deal.c:deal_blocks",
    "had ? had->node : -1", "had && !MUTANT ? had->node : -1",
    "unit/test_deal: every_asker_gets_his_bytes_and_blocks_are_read_once")
skipped("pieces_stay", "what a block lacks that lies on two nodes is not brought",
        "engine/spread.c:shf_spread", "send_pieces(run, view, &map.pieces, err)",
        NODES + "what_several_memories_have_comes_back_in_any_layout")
bug("part_is_published", "the flush of a step that is on another node too needs nobody else",
    "engine/flush.c:consider", "f->found = r->here == r->ranks;",
    "f->found = MUTANT || r->here == r->ranks;",
    NODES + "agents_write_together_what_none_has_all_of")
skipped("base_of_one_rank", "only rank 0 knows what a step in memory follows",
        "engine/tier.c:agree_on_base", "shf_bcast(team, &on, sizeof(on), err)",
        NODES + "a_job_that_saved_to_memory_alone_is_written_too")
bug("nobody_waits_for_shares", "a step is published before all agents have written their part",
    "engine/meet.c:all_done", "return here == ranks ? 0", "return MUTANT || here == ranks ? 0",
    NODES + "agents_write_together_what_none_has_all_of")

# ---- twice ----
GUESTS = "sim/test_guests: "
bug("newer_copy_makes_place", "what comes is copied over the newest copy that is whole",
    "engine/guest_send.c:make_place", "c->slot = g->steps[1] < g->steps[0];",
    "c->slot = MUTANT ? g->steps[1] > g->steps[0] : g->steps[1] < g->steps[0];",
    GUESTS + "each_rank_may_die_at_each_operation_and_a_node_with_it")
bug("copies_not_asked_for", "a restarted job does not hear of copies", "engine/choose.c:gather",
    "run->store.run, true, &mine", "run->store.run, !MUTANT, &mine",
    GUESTS + "a_lost_node_costs_nothing")
skipped("copies_of_all_ranks", "copies are taken of ranks whose own is there",
        "engine/recall.c:get_part", "!has_rank(copied, rank)",
        GUESTS + "a_lost_node_costs_nothing")
bug("load_takes_the_newest", "a load is read into the image of what memory has newest",
    "engine/images.c:shf_image_choose", "stay = run->tier.newest >= 0 ?",
    "stay = run->tier.newest >= 0 && !MUTANT ?",
    MEMORY + "a_load_leaves_what_memory_has_newest")
AHEAD = "unit/test_ahead: "
bug("gaps_touched", "memory between the rows of a slice is written to, page by page",
    "engine/ahead.c:is_dense", "m->stride[d] != by", "!MUTANT && m->stride[d] != by",
    AHEAD + "new_memory_is_touched_before_it_is_filled")
gullible("nothing_touched", "memory that is new is left to faults",
         "engine/ahead.c:find", "t->source != SHF_FROM_STEP",
         AHEAD + "new_memory_is_touched_before_it_is_filled")

# ---- behind who asks ----
PUBLISHING = "sim/test_publishing: "
bug("stage_beside_publish", "a stage is made while a thread publishes the step before",
    "engine/save_stage.c:shf_save_stage", "shf_publishing_settle(save->run);",
    "if (!MUTANT) shf_publishing_settle(save->run);",
    PUBLISHING + "a_save_that_begins_waits_for_it_and_follows_it")
blind("own_step_in_the_way", "a step that is published and not told is taken for another's",
      "engine/save_stage.c:find_parent", "before && n.newest == before->step",
      PUBLISHING + "a_save_that_begins_waits_for_it_and_follows_it")
blind("freed_without_doubt", "who gives up a step that is being published forgets it",
      "engine/save.c:shf_save_free", "save->publishing.begun",
      PUBLISHING + "one_that_is_freed_is_there_and_the_next_follows_it")
blind("freed_half_published", "a step that is being published is thrown away with its save",
      "engine/save.c:let_go", "save->publishing.begun && run->team.rank == 0",
      PUBLISHING + "one_that_is_freed_is_there_and_the_next_follows_it")
blind("note_too_late", "a note is taken that no manifest will have",
      "engine/save.c:shf_save_note", "save->publishing.begun && !save->over",
      PUBLISHING + "nothing_can_be_added_to_it_and_nobody_can_fail_it")
bug("pruned_unheard", "the log does not hear of steps that went behind",
    "engine/pruning.c:shf_pruning_settle", "tell(run);",
    "if (MUTANT) shf_buf_release(&p->told); tell(run);",
    PUBLISHING + "old_steps_go_behind_it_and_the_log_hears_of_each")

# ---- how many steps an agent keeps ----
ALLOWED = "sim/test_allowed: "
bug("agents_bound_ignored", "a job has as many images as it was given, whatever agents allow",
    "engine/save.c:shf_save_images", "most = shf_tier_allows(save->run, most);",
    "if (!MUTANT) most = shf_tier_allows(save->run, most);",
    ALLOWED + "saves_have_as_many_images_as_every_agent_allows")
bug("bound_heard_again", "a job gives up images that it has, with what lies in them",
    "engine/tier.c:shf_tier_bound", "if (t->bounded)", "if (!MUTANT && t->bounded)",
    ALLOWED + "a_job_keeps_the_images_that_it_has")
bug("chosen_unseen", "the image of a save that is being written goes to another one (I10)",
    "engine/images.c:shf_image_choose", "s->image == (run->tier.newest == 0)",
    "!MUTANT && s->image == (run->tier.newest == 0)",
    "sim/test_images: an_image_is_chosen_that_nobody_needs_or_the_one_needed_least")

# ---- what is measured ----
STALL = "sim/test_stall: "
bug("coin_of_ones_own", "each rank tosses a coin of its own", "engine/ab.c:shf_ab_leaves_out",
    "x = run->ab->salt +", "x = run->ab->salt + (MUTANT ? (uint64_t)run->team.rank : 0) +",
    STALL + "all_ranks_toss_the_same_coin")
gullible("any_save_left_out", "a save that must not be dropped is left out to compare",
         "engine/ab.c:may_leave_out", "flags & SHEAF_LAZY && flags & SHEAF_MAY_DROP",
         STALL + "a_save_that_must_not_be_dropped_is_not")
skipped("own_times_told", "a line of metrics has the times of the rank that writes it",
        "engine/stall.c:shf_stall_tell_all",
        "shf_allreduce(&run->team, t.x, T_N, SHEAF_MAX, NULL)",
        STALL + "a_line_says_of_each_cause_what_the_slowest_rank_says")
bug("torn_line_joined", "a line of metrics goes on where half of one ends",
    "store/metrics.c:ends_whole", "return end == 0 ||", "return MUTANT || end == 0 ||",
    STALL + "a_torn_line_spoils_no_other")
bug("older_job_counted", "how many ranks a job has is what the first table that is listed says",
    "engine/meet.c:ranks_of_job", "(ours == own && c.step <= newest)", "(!MUTANT && ours == own "
    "&& c.step <= newest) || (MUTANT && ranks > 0)",
    "sim/test_meet: a_rank_that_the_job_does_not_have_is_not_counted")
