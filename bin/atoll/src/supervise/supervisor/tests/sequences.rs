//! Checks that the supervisor's books stay right whatever clients ask in whatever order, and that everything
//! is gone with the clients.

use std::collections::BTreeMap;

use super::*;

/// One connection to the control socket, and the keys of the sessions that it is in.
struct Asker {
    channel: Channel,
    is_in: BTreeMap<u32, u64>,
}

#[test]
fn random_sequences_of_requests_leave_nothing_behind() {
    const ASKERS_MAX: u32 = 12;
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let mut bench = Bench::new(2);
        let mut askers: Vec<Asker> = Vec::new();
        // The keys of all sessions that ever existed.
        let mut keys: BTreeMap<u32, u64> = BTreeMap::new();
        for _ in 0..300 {
            let at = rng.below(askers.len().max(1) as u32) as usize;
            match rng.below(12) {
                0 | 1 if askers.len() < ASKERS_MAX as usize => {
                    askers.push(Asker { channel: bench.client(), is_in: BTreeMap::new() })
                }
                2..=4 if !askers.is_empty() => {
                    let asker = &mut askers[at];
                    let outcome = bench.ask(
                        &asker.channel,
                        &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 },
                    );
                    match outcome {
                        (Ok(joined), fds) => {
                            assert_eq!(fds.len(), 2 + BELLS + 3 * 2);
                            assert!(keys.values().all(|key| *key != joined.key), "a key of another session");
                            assert_eq!(
                                keys.insert(joined.session, joined.key),
                                None,
                                "a number that was used"
                            );
                            asker.is_in.insert(joined.session, joined.key);
                        }
                        (Err(_), fds) => assert!(fds.is_empty(), "who is refused gets nothing"),
                    }
                }
                5 | 6 if !askers.is_empty() && !keys.is_empty() => {
                    // The session is any that existed; now and then the key is not its own.
                    let nth = rng.below(keys.len() as u32) as usize;
                    let (session, key) =
                        keys.iter().nth(nth).map(|(session, key)| (*session, *key)).expect("in range");
                    let is_right = rng.below(3) > 0;
                    let is_open = askers.iter().any(|asker| asker.is_in.contains_key(&session));
                    let asker = &mut askers[at];
                    let request =
                        Request::Join { session, key: if is_right { key } else { key ^ 1 << rng.below(64) } };
                    match bench.ask(&asker.channel, &request) {
                        (Ok(joined), _) => {
                            assert!(is_right && is_open && joined.session == session);
                            asker.is_in.insert(session, key);
                        }
                        (Err(_), fds) => assert!(fds.is_empty(), "who is refused gets nothing"),
                    }
                }
                7 | 8 if !askers.is_empty() => {
                    // The session is one of its own, or of others, which it does not leave.
                    let session = rng.below(keys.len() as u32 + 2);
                    let asker = &mut askers[at];
                    asker.channel.send(&Request::Leave { session }.encode(), &[]).unwrap();
                    bench.settle();
                    while receive(&asker.channel).is_some() {}
                    asker.is_in.remove(&session);
                }
                9 if !askers.is_empty() => {
                    // It asks, and goes before it is answered.
                    let asker = askers.swap_remove(at);
                    let _ = asker
                        .channel
                        .send(&Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 }.encode(), &[]);
                }
                10 if !askers.is_empty() => {
                    askers.swap_remove(at);
                }
                _ if !askers.is_empty() => {
                    let noise: Vec<u8> =
                        (0..1 + rng.below(80)).map(|_| 9 + (rng.next_u32() % 200) as u8).collect();
                    let _ = askers[at].channel.send(&noise, &[]);
                    bench.settle();
                    // The supervisor may close its connection for that.
                    while receive(&askers[at].channel).is_some() {}
                }
                _ => {}
            }
            bench.settle();
            for replica in 0..2 {
                bench.told(replica);
            }
            let expected: std::collections::BTreeSet<u32> =
                askers.iter().flat_map(|asker| asker.is_in.keys().copied()).collect();
            let open: std::collections::BTreeSet<u32> = bench.server.books.ids().collect();
            assert_eq!(open, expected, "seed {seed}");
        }
        askers.clear();
        bench.settle();
        assert!(bench.server.books.len() == 0, "seed {seed}: a session is left");
        assert!(bench.server.clients.len() == 0, "seed {seed}: a client is left");
    }
}
