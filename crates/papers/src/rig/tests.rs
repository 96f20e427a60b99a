use super::*;

#[test]
fn short_connections_go_from_syn_to_the_end_again_and_again() {
    let mut rig = Rig::new();
    let mut answered = Vec::new();
    for _ in 0..100 {
        rig.short(&mut |step, now, server, frames| {
            take(step, now, server, frames);
            if matches!(step, Step::Syn | Step::Respond | Step::Fin) {
                answered.push(server.out.ends.len());
            }
        });
    }
    assert!(answered.iter().all(|&frames| frames == BATCH), "{answered:?}");
}

#[test]
fn a_replay_answers_as_the_recorded_server_did() {
    let recorded = record(64);
    assert_eq!(recorded.connections(), 64);
    let once = replay(&recorded);
    assert!(once > 64 * PAGE.len());
    let bytes = recorded.to_bytes();
    assert_eq!(Replay::from_bytes(&bytes).map(|read| replay(&read)), Some(once));
    assert!(Replay::from_bytes(&bytes[..bytes.len() - 1]).is_none());
    assert!(Replay::from_bytes(&[9; 13]).is_none());
}

#[test]
fn measuring_gives_a_whole_table() {
    let table = measure(&crate::Table::built_in(), 1, |_| ());
    assert_eq!(crate::Table::parse(&table.to_toml()), Ok(table));
}
