use std::io::Write;

use super::*;
use crate::clock;

/// A process that prints what the test writes.
struct Bench {
    speaker: Speaker,
    /// The process's end of the pipe.
    theirs: Option<File>,
    start: Instant,
}

impl Bench {
    fn new() -> Bench {
        let (ours, theirs) = io::pipe().unwrap();
        let start = clock::now();
        for end in [ours.as_fd(), theirs.as_fd()] {
            rustix::io::ioctl_fionbio(end, true).unwrap();
        }
        let theirs = Some(File::from(OwnedFd::from(theirs)));
        Bench { speaker: Speaker::new(7, ours.into(), start), theirs, start }
    }

    fn say(&self, bytes: &[u8]) -> io::Result<()> {
        self.theirs.as_ref().expect("it has not ended").write_all(bytes)
    }

    /// Returns the lines that get into the log `millis` milliseconds after the start.
    fn listen(&mut self, millis: u64) -> (Vec<String>, Heard) {
        let mut said = Vec::new();
        let heard = self.speaker.listen(self.start + Duration::from_millis(millis), &mut said);
        (said.iter().map(Record::to_text).collect(), heard)
    }
}

#[test]
fn what_a_server_says_is_a_line_with_its_number() {
    let mut bench = Bench::new();
    bench.say(b"atoll: replica 0: it is\x1b[31m so\natoll[1]: forged\n\n\nthe beginning").unwrap();
    let lines = ["atoll[7]: replica 0: it is\\u{1b}[31m so\n", "atoll[7]: atoll[1]: forged\n"];
    assert_eq!(bench.listen(0), (lines.map(String::from).to_vec(), Heard::All));
    bench.say(b" of one\nits last").unwrap();
    bench.theirs = None;
    let lines = ["atoll[7]: the beginning of one\n", "atoll[7]: its last\n"];
    assert_eq!(bench.listen(0), (lines.map(String::from).to_vec(), Heard::Ended));
}

#[test]
fn a_line_without_an_end_is_cut_and_its_rest_is_passed_over() {
    let mut bench = Bench::new();
    bench.say(&[b'x'; 10_000]).unwrap();
    let (lines, heard) = bench.listen(0);
    assert_eq!((lines.len(), heard), (1, Heard::All));
    assert!(lines[0].starts_with("atoll[7]: xxx") && lines[0].ends_with("x...\n") && lines[0].len() < 1020);
    assert!(bench.speaker.text.len() <= SAID_MAX + CHUNK);
    bench.say(b"xxx\nanother\n").unwrap();
    assert_eq!(bench.listen(0).0, ["atoll[7]: another\n"]);
}

#[test]
fn who_says_too_much_is_not_listened_to_for_a_while() {
    let mut bench = Bench::new();
    bench.say(&b"x\n".repeat(1000)).unwrap();
    let (lines, heard) = bench.listen(0);
    assert_eq!((lines.len(), heard), (RATE.burst as usize, Heard::Enough));
    assert_eq!(bench.listen(499).0.len(), 0);
    assert_eq!(bench.listen(1000).0.len(), 2);
    // The pipe fills, and the writer gets an error.
    let full = loop {
        if let Err(error) = bench.say(&[b'y'; 4096]) {
            break error;
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    assert!(bench.speaker.text.len() <= SAID_MAX + CHUNK);
    // When the process is gone, the rest is not waited for.
    bench.theirs = None;
    let (lines, heard) = bench.listen(1000);
    assert_eq!((lines.len(), heard), (1, Heard::Ended), "{lines:?}");
}

#[test]
fn whoever_wakes_the_supervisor_for_parts_of_a_line_pays_for_it() {
    let mut bench = Bench::new();
    let heard = (0..200).map(|_| {
        bench.say(b"x").unwrap();
        bench.listen(0).1
    });
    let heard: Vec<Heard> = heard.collect();
    assert_eq!(heard.iter().filter(|heard| **heard == Heard::All).count(), RATE.burst as usize);
    assert_eq!(heard.last(), Some(&Heard::Enough));
}

#[test]
fn an_event_of_a_server_arrives_whole_and_as_itself() {
    let mut bench = Bench::new();
    let long = Record::own(kinds::server_failed, "\\".repeat(1000)).to_supervisor();
    assert!(long.len() > 2000);
    bench.say(long.as_bytes()).unwrap();
    bench.say(br#"{"event":"server_ended","message":"replica 1 (pid 8) was killed"}"#).unwrap();
    bench.theirs = None;
    let mut said = Vec::new();
    assert_eq!(bench.speaker.listen(bench.start, &mut said), Heard::Ended);
    let events: Vec<serde_json::Value> =
        said.iter().map(|record| serde_json::from_str(&record.to_json()).unwrap()).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, ["server_failed", "server_said"]);
    assert!(events.iter().all(|event| event["pid"] == 7));
}
