//! All events of the log: which process reports each, its severity, and the fields that it may have.
//! `docs/events.md` is made of this table.

use tracing::Level;

/// A kind of event.
#[derive(Debug)]
pub struct Kind {
    /// The name, which never changes, and which no other event has.
    pub name: &'static str,
    pub level: Level,
    pub by: By,
    /// The names of the fields that an event of this kind may have.
    pub fields: &'static [&'static str],
    /// The meaning of the event, for `docs/events.md`.
    #[cfg(test)]
    pub meaning: &'static str,
}

/// The processes that report an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Supervisor,
    Guardian,
    /// A server. It is not trusted, so only these events are accepted from one.
    Server,
    /// Any of them.
    Any,
}

impl Kind {
    /// Returns whether events of this kind may have a field of this name. Evaluated by the compiler for
    /// [`event!`](crate::log).
    pub const fn has(&self, field: &str) -> bool {
        let mut at = 0;
        while at < self.fields.len() {
            if is_same(self.fields[at].as_bytes(), field.as_bytes()) {
                return true;
            }
            at += 1;
        }
        false
    }

    /// Returns the name of the field that equals `field`, if events of this kind may have it.
    pub fn field(&self, field: &str) -> Option<&'static str> {
        self.fields.iter().copied().find(|name| *name == field)
    }
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Returns the kind of this name that a server may report.
pub fn of_server(name: &str) -> Option<&'static Kind> {
    ALL.iter().copied().find(|kind| kind.name == name && matches!(kind.by, By::Server | By::Any))
}

macro_rules! kinds {
    ($($by:ident $level:ident $name:ident [$($field:ident)*] $meaning:literal;)*) => {
        $(
            #[doc = $meaning]
            #[allow(non_upper_case_globals)]
            pub const $name: &Kind = &Kind {
                name: stringify!($name),
                level: Level::$level,
                by: By::$by,
                fields: &[$(stringify!($field)),*],
                #[cfg(test)]
                meaning: $meaning,
            };
        )*
        /// All kinds of events.
        pub const ALL: &[&Kind] = &[$($name),*];
    };
}

kinds! {
    Supervisor DEBUG stack_ready [] "The stack is ready for programs.";
    Supervisor ERROR supervisor_failed [error shortage]
        "The supervisor or guardian ends because of this error.";
    Supervisor INFO supervisor_took_over [pid ms] "A supervisor continues the stack of its predecessor.";
    Supervisor WARN supervisor_short [error errno] "The supervisor lacks something, and tries again.";
    Supervisor INFO guardian_started [pid] "The supervisor has another guardian.";
    Supervisor WARN guardian_not_started [error errno] "There is no guardian, and none can be started.";
    Supervisor WARN guardian_gone [error errno] "The guardian has ended; another one is started.";
    Supervisor WARN guardian_not_watched [error errno] "The end of the guardian will be noticed late.";
    Supervisor DEBUG server_started [role index pid epoch]
        "The next process of a server is started.";
    Supervisor INFO server_back [role index pid epoch ms start_ms ready_ms sessions_later]
        "A server serves again: until its process was started, from then until it was ready, and both.";
    Supervisor INFO server_moved [role index pid epoch ms] "A replica serves in another process.";
    Supervisor WARN server_ended [role index pid exit signal status call retry_ms]
        "A server has ended, and is started again: exit is signal, status, forbidden_call, killed or gone.";
    Supervisor WARN server_hangs [role index pid ms] "A server has given no sign of life, and is killed.";
    Supervisor WARN server_stopped [pid servers] "A process is stopped (SIGSTOP), and is killed.";
    Supervisor WARN server_late [role index pid serves]
        "A server does not hand over or is not ready in time, and is killed.";
    Supervisor WARN server_not_started [role index error shortage retry_ms]
        "A server cannot be started for now.";
    Supervisor WARN standby_ended [pid exit signal status call retry_ms]
        "The standby process has ended.";
    Supervisor WARN standby_not_started [error shortage retry_ms] "There is no standby process for now.";
    Supervisor INFO scaled [from to busy_percent] "The number of processes for replicas follows their load.";
    Supervisor DEBUG move_done [processes] "All replicas are in the requested processes.";
    Supervisor WARN move_failed [processes error] "Replicas stay where they are.";
    Supervisor INFO upgrade_began [from to] "Servers are replaced by those of another build.";
    Supervisor WARN upgrade_refused [error] "The build cannot take over.";
    Supervisor INFO server_upgraded [role index build ms] "A server is of the requested build.";
    Supervisor WARN upgrade_reverts [error] "A server of the new build has failed: the old build comes back.";
    Supervisor WARN upgrade_failed [error] "The old build is back.";
    Supervisor INFO servers_upgraded [] "All servers are of the new build.";
    Supervisor INFO upgrade_done [build error errno]
        "The supervisor and, without an error, the guardian are of the new build.";
    Supervisor DEBUG session_opened [session pid] "A program has attached to the stack.";
    Supervisor DEBUG session_ended [session] "All programs of a session are gone.";
    Supervisor WARN session_cut_off [session pid role index]
        "Servers have died at work for a session, which is not served any more.";
    Supervisor INFO memory_enough [] "There is enough memory again.";
    Supervisor WARN memory_short [] "Memory is short: buffers are kept small.";
    Supervisor WARN memory_used_up [] "Memory is used up: nothing new is accepted.";
    Supervisor WARN pages_writable [error errno]
        "Programs of the stack's own user could write the pages of replicas.";
    Supervisor WARN end_noticed_late [error errno] "Ends of processes are noticed a little later.";
    Supervisor WARN user_unknown [user error errno] "A user of ports.users is not known.";
    Supervisor WARN server_said [] "A server has printed a line that is no event of a server.";
    Supervisor WARN server_cut_short [] "A server printed too much before it ended.";
    Guardian INFO supervisor_makes_way [] "The supervisor ends for one of another build.";
    Guardian WARN supervisor_ended [exit signal status] "The supervisor has ended; the next one takes over.";
    Guardian WARN supervisor_reverted [error] "Supervisors are of the old build again.";
    Guardian WARN supervisor_not_started [error] "No supervisor can be started for now.";
    Guardian ERROR supervisors_hopeless [] "No supervisor could take over; the stack ends.";
    Guardian WARN note_lost [error errno] "A note of the supervisor is lost.";
    Server ERROR server_failed [process error errno shortage] "A server ends because of this error.";
    Server WARN connections_lost [replica kept lost why] "Connections of the predecessor cannot continue.";
    Server WARN died_at_work [replica work deaths] "The predecessor died at this work.";
    Server WARN session_incomplete [replica session] "A session came without its memory.";
    Server WARN pages_not_resident [error errno] "Pages of the program are mapped only when they are needed.";
    Server WARN end_not_marked [error errno] "The end of this process is noticed a little later.";
    Any ERROR panicked [] "A process has found a fault in itself, and ends.";
    Any WARN lines_left_out [count] "This number of events before this one was not written.";
}

/// Returns the text of `docs/events.md`.
#[cfg(test)]
fn documented() -> String {
    let mut text = String::from(HEAD);
    for (by, title) in [
        (By::Supervisor, "The supervisor"),
        (By::Guardian, "The guardian"),
        (By::Server, "Servers"),
        (By::Any, "Any of them"),
    ] {
        text += &format!("\n## {title}\n| event | level | fields | meaning |\n|---|---|---|---|\n");
        for kind in ALL.iter().filter(|kind| kind.by == by) {
            let fields: Vec<String> = kind.fields.iter().map(|name| format!("`{name}`")).collect();
            let Kind { name, level, meaning, .. } = kind;
            text += &format!("| `{name}` | {level} | {} | {meaning} |\n", fields.join(", "));
        }
    }
    text
}

#[cfg(test)]
const HEAD: &str = include_str!("kinds/head.md");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn names_are_unique_and_fit_the_form_of_servers() {
        let names: BTreeSet<&str> = ALL.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), ALL.len());
        for kind in ALL {
            let fields =
                kind.fields.iter().map(|name| ((*name).into(), atoll_supervisor::SaidValue::Flag(true)));
            let said = atoll_supervisor::Said {
                event: kind.name.into(),
                fields: fields.collect(),
                message: String::new(),
            };
            assert_eq!(atoll_supervisor::Said::parse(said.to_line().as_bytes()), Some(said));
        }
        assert!(of_server("connections_lost").is_some() && of_server("server_back").is_none());
    }

    #[test]
    fn fields_are_known_by_their_whole_names() {
        assert!(server_back.has("ready_ms") && !server_back.has("ready") && !server_back.has("ready_ms2"));
        assert!(!server_back.has("") && !memory_short.has("x"));
    }

    /// Run with `ATOLL_WRITE=1` to write the file instead of comparing it.
    #[test]
    fn the_document_lists_all_events() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/events.md");
        if std::env::var_os("ATOLL_WRITE").is_some() {
            std::fs::write(&path, documented()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(written, documented(), "ATOLL_WRITE=1 cargo test -p atoll the_document_lists writes it");
    }

    #[test]
    fn every_event_is_reported_somewhere() {
        let mut text = String::new();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    folders.push(entry);
                } else {
                    text += &std::fs::read_to_string(entry).unwrap();
                }
            }
        }
        // An event is reported by `event!`, or made by the log itself.
        let words: String = text.split_whitespace().collect();
        for Kind { name, .. } in ALL {
            let is_used = [format!("event!({name},"), format!("kinds::{name}")];
            assert!(is_used.iter().any(|used| words.contains(used)), "nobody reports {name}");
        }
    }
}
