//! Do sockets behave as the kernel's do, call by call and error by error?
//!
//! `programs/sockets.py`, `programs/calls.c`, `programs/pointers.c` and `programs/raw.c` hold one behaviour
//! per name and print what happens. Each runs on the kernel and inside a private stack, and must print the
//! same lines.

use std::process::Command;

use atoll_system_tests::{NoNet, Proc, Stack, compiled, program};

/// Makes a test of each case, and one that checks that no case lacks a test.
macro_rules! cases {
    ($language:ident, $($case:ident),* $(,)?) => {
        mod $language {
            $(#[test] fn $case() { super::behaves_as_on_the_kernel(super::$language, stringify!($case)) })*

            #[test]
            fn every_case_has_its_test() {
                let list =
                    atoll_system_tests::Proc::start(super::$language().arg("--list"), None).success(10);
                assert_eq!(list.split_whitespace().collect::<Vec<_>>(), [$(stringify!($case)),*]);
            }
        }
    };
}

cases! {
    python,
        connect_refused, connect_refused_without_blocking, connect_without_blocking, connect_twice,
        connect_again_after_a_refusal, disconnected_by_connect, operations_without_connection,
        connection_to_itself_has_names, names_in_every_state, the_first_call_that_asks_gets_the_error,
        a_backlog_lets_one_connection_more_wait, shutdown_without_a_connection_stays,
        a_socket_is_its_own_peer, what_is_shut_before_it_connects_to_itself_ends_at_once,
        a_socket_is_its_own_peer_without_blocking, connect_binds_the_wildcard,
        address_in_use, wildcard_and_address_conflict, foreign_address, reuse_port,
        reuse_address_after_bind,
        waiting_without_descriptors, listen_without_bind,
        listener_is_no_connection, accept_without_blocking, closed_before_accept, reset_before_accept,
        who_comes_late_to_a_listener_finds_what_waits,
        less_than_no_time, who_disconnects_hears_of_it, bind_after_a_refusal,
        a_listener_that_was_shut_down_is_a_fresh_socket, bind_once_more_after_a_connection,
        what_is_shut_before_a_connection_stays_shut, shutdown_of_a_listener_resets_what_waits_at_once,
        shutdown_while_connecting,
        a_listener_listens_again,
        text_after_both_ways_are_shut,
        closing_a_listener_resets_what_waits, accept_times_out, messages_arrive, megabytes_arrive,
        receive_without_blocking, send_until_full, unsent_low_water_mark, pacing_rate, peek, wait_for_all,
        receive_times_out, send_times_out,
        bytes_waiting, nonblocking_by_ioctl, vectors,
        peek_for_all_of_less, small_calls_that_fail, octets_from_nowhere, message_calls, send_file,
        read_and_write,
        splice_moves_octets, splice_does_not_wait, splice_loses_nothing,
        splice_that_cannot_go_on_leaves_the_pipe, splice_that_fails, splice_and_ends_of_connections,
        splice_times_out, splice_waits, splice_stops_at_an_urgent_octet, splice_of_datagrams,
        send_file_in_all_forms, send_file_as_a_datagram,
        completions_of_a_connection, completions_of_what_does_not_fit, completions_wake,
        completions_of_others, queues_in_every_state, queue_beside_what_is_received, datagrams_corked,
        out_of_band_is_urgent, urgent_octet_is_taken_aside, urgent_octet_is_passed_over, urgent_octet_in_line,
        urgent_octet_alone, urgent_octet_alone_in_line, urgent_octet_at_the_end, urgent_octets_in_a_row,
        urgent_octets_that_were_overtaken, urgent_octet_after_one_that_was_taken,
        waiting_for_all_ends_at_the_mark, peeking_at_the_mark, urgent_messages, urgency_is_an_exception,
        urgent_signal, urgent_signal_of_another_socket, urgent_signal_without_calls,
        urgent_octets_among_megabytes,
        urgency_does_not_outlive_a_fork, fast_open_options, fast_open_without_cookie,
        fast_open_without_cookie_or_blocking, fast_open_by_connect_without_cookie, fast_open_refused,
        shutdown_for_writing, shutdown_for_reading,
        who_reads_and_writes_no_more_resets_who_sends_on, shutdown_twice, write_after_reset,
        error_after_reset, close_with_unread_data_resets,
        an_answer_leaves_though_the_question_was_not_read, broken_pipe_signal, broken_pipe_kills,
        a_clamp_is_set_again_as_it_is,
        who_closes_first_does_not_linger,
        close_lingers_until_the_time_is_over, close_lingers_until_everything_is_acknowledged,
        close_does_not_linger_where_it_resets, a_number_is_free_while_its_close_lingers,
        only_the_last_close_lingers, a_process_that_ends_does_not_linger, a_signal_ends_the_wait_of_close,
        close_wakes_nobody_but_the_peer, shutdown_wakes_a_reader, closed_descriptors, options,
        options_are_inherited, what_comes_from_too_far_away,
        segments_by_tcp_info, times_by_tcp_info, connections_to_many, state_by_tcp_info,
        cork_holds_back, nodelay_again_sends_what_is_held_back,
        options_before_connect_count_for_the_handshake, deferred_accept, poll_events,
        select_events,
        epoll_level, epoll_edge, epoll_edge_for_writing, epoll_one_shot, epoll_hang_up, epoll_nested,
        epoll_mixed, poll_mixed, epoll_forgets_what_is_closed, epoll_watches_a_duplicate,
        many_epolls_see_one_socket, epoll_of_a_listener, epoll_of_thousands, interrupted_calls_continue,
        blocked_threads,
        threads_listen_at_once, accept_after_fork, a_fork_beside_a_thread_that_sleeps,
        who_sends_a_socket_has_a_thread_that_sleeps, a_fork_while_a_timer_fires, prefork_shares_the_work,
        who_is_busy_gets_no_more_connections, connection_after_fork, end_only_when_all_have_closed,
        exec_with_a_socket, exec_closes_what_says_so, exec_with_a_listener,
        the_owner_of_a_socket_outlives_exec,
        exec_that_fails, standard_streams,
        standard_streams_of_stdio, duplicates,
        duplicate_shares_flags, lowest_number_is_reused, passing_descriptors,
        who_has_sent_a_socket_and_sleeps_keeps_no_connection_open, passing_a_listener,
        passing_a_listener_to_another_process, passing_what_is_bound, passing_a_new_socket,
        passing_datagram_sockets, who_sends_a_listener_may_end_before_it_is_received,
        a_listener_that_nobody_receives_ends, passing_a_low_port_to_another_user,
        passed_sockets_keep_their_inode, closed_numbers_are_free, the_lowest_number_is_next,
        all_numbers_below_the_limit, waiting_without_a_number_left, who_closes_all_numbers_goes_on,
        what_the_kernel_says,
        other_families_are_left_alone, who_comes_first_on_loopback_does_not_matter, bad_addresses,
        udp_echo, udp_connected, udp_refused, udp_errors_are_told_once, udp_errors_need_a_peer,
        udp_errors_in_a_row, udp_calls_that_tell_an_error, datagrams_without_a_way_fail_at_once,
        an_error_behind_datagrams_that_wait_is_there_at_once, errors_between_datagrams,
        epoll_sees_an_error_behind_datagrams, a_family_hears_an_error_behind_datagrams_once,
        udp_errors_quote_what_was_sent, datagrams_that_are_too_long_are_in_the_queue, udp_shutdown,
        udp_in_parts, udp_boundaries,
        udp_large, udp_mtu_discovery, datagram_details, datagrams_with_details, v6_datagram_details,
        datagram_segments, datagram_times, datagram_times_everywhere,
        peek_offset_of_a_connection, peek_offset_at_the_mark, peek_at_an_urgent_octet_and_read_on,
        peek_offset_of_datagrams, peek_offset_and_datagrams_without_octets, peek_offset_goes_with_exec,
        errors_are_urgent_where_asked_for, dropped_datagrams_are_counted, memory_of_sockets, locked_buffers,
        a_locked_buffer_does_not_grow, stamps_by_ioctl, congestion_control_tells_of_itself, ports_of_a_range,
        ports_of_a_range_for_connections,
        multicast_options, multicast_memberships, multicast_reaches_every_member, multicast_without_members,
        udp_address_in_use,
        v6_connection_has_names, v6_listener_takes_both_families, v6_listener_alone,
        v6_ports_are_shared_as_the_table_says, v6_options, v6_fragment_options, v6_multicast_options,
        v6_multicast_memberships, v6_refused_and_unreachable, v6_datagrams,
        v6_datagrams_connected, v6_datagrams_bound_to_one_family, v6_urgent_datagrams,
        v6_socket_hears_no_group_of_others, v6_bad_addresses, v6_listener_survives_exec,
        ports_of_one_user, ports_of_two_users, ports_of_whoever_made_the_socket, low_ports_are_for_who_binds,
        ports_after_root_is_given_up,
        raw_sockets_hear_themselves, raw_sockets_are_short_or_long, raw_sockets_filter,
        raw_sockets_have_options, raw_sockets_bind_and_connect, raw_sockets_each_get_a_copy,
        raw_sockets_hear_of_errors, raw_sockets_are_inherited, raw_sockets_need_a_capability
}

cases! {
    c,
        interrupted, restarted, restarted_by_one_of_two, handlers_receive, handlers_fork, handlers_jump,
        calls_that_were_left_hold_nothing, a_handler_forks_and_both_go_on,
        timed_receive_is_not_restarted, masks_while_waiting, many_messages, many_times,
        messages_on_streams, short_names, vectors_of_many_parts, flags_at_birth, ranges_of_descriptors,
        standard_io, formatted_text, shutdown_wakes_accept, spawned, vforked, vforked_and_shut_in,
        poll_of_odd_entries, epoll_arguments,
        epoll_is_fair, edges_wake_one_thread, many_threads, send_file_moves_the_position, spliced,
        low_water_mark,
        event_descriptors_beside_sockets, cancelled_while_blocked, cancelled_before_a_call,
        cancellation_switched_off, cancelled_at_any_time, cancelled_while_falling_asleep,
        one_of_many_is_cancelled,
        handlers_end_their_thread, calls_by_number, confined_by_a_filter,
        rights_are_given_up_by_one_thread
}

cases! {
    pointers,
        lead_nowhere, are_beyond_a_file, may_not_be_written, lead_out_of_memory, are_the_programs_own
}

cases! {
    raw,
        connections, waiting, datagrams, splices, registers_are_kept, interrupted, restarted, handlers_jump,
        blocked_signals, calls_in_handlers, a_filter_that_traps, sigsys_ends_the_process,
        threads_of_the_c_library, threads_of_the_programs, children, registers_of_parents, executed,
        short_stacks, files_of_proc
}

/// The same of static programs, whose threads and memory are not those of the library's own C library.
macro_rules! cases_of_static_programs {
    ($($program:ident: $($case:ident),* ;)*) => {
        mod fixed { $(
            mod $program {
                use atoll_system_tests::compiled_statically;

                fn command() -> std::process::Command {
                    std::process::Command::new(compiled_statically(stringify!($program)))
                }

                $(#[test] fn $case() {
                    super::super::behaves_as_on_the_kernel(command, stringify!($case))
                })*
            }
        )* }
    };
}

cases_of_static_programs! {
    pointers: lead_nowhere, are_the_programs_own;
    calls: interrupted, restarted, handlers_receive, handlers_fork, handlers_jump, masks_while_waiting,
        spawned, vforked, edges_wake_one_thread, many_threads, cancelled_while_blocked,
        cancelled_at_any_time, handlers_end_their_thread, spliced;
    raw: connections, splices, blocked_signals, calls_in_handlers, threads_of_the_c_library,
        threads_of_the_programs, children, executed, short_stacks;
}

/// Each pair of addresses and of the options that share ports, of 3072.
#[test]
fn two_sockets_have_one_port_where_they_may_on_the_kernel() {
    let no_net = NoNet::new();
    for protocol in ["tcp", "udp"] {
        let on = |stack| {
            let mut command = Command::new("/usr/bin/python3");
            command.args([&program("binds.py"), protocol]);
            Proc::start(&mut no_net.on(stack, &command), None).success(60)
        };
        let (kernel, atoll) = (on(Stack::Kernel), on(Stack::Atoll));
        assert!(kernel.lines().count() >= 1024, "{kernel}");
        let differs = kernel.lines().zip(atoll.lines()).filter(|(one, other)| one != other);
        let differs: Vec<_> = differs.collect();
        assert!(kernel == atoll, "on the kernel, and on Atoll: {differs:#?}");
    }
}

fn python() -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(program("sockets.py"));
    command
}

fn c() -> Command {
    Command::new(compiled("calls"))
}

fn pointers() -> Command {
    Command::new(compiled("pointers"))
}

/// Returns a program that makes its system calls by an instruction of its own.
fn raw() -> Command {
    Command::new(compiled("raw"))
}

fn behaves_as_on_the_kernel(language: fn() -> Command, case: &str) {
    let no_net = NoNet::new();
    let on = |stack| Proc::start(&mut no_net.on(stack, language().arg(case)), None).success(40);
    let kernel = on(Stack::Kernel);
    assert!(!kernel.is_empty(), "the case shows nothing");
    let atoll = on(Stack::Atoll);
    assert!(kernel == atoll, "on the kernel:\n{kernel}\non Atoll:\n{atoll}");
}
