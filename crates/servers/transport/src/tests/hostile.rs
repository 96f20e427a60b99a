use super::*;

/// An application that scribbles over all of its arena, while another one is served.
#[test]
fn a_scribbling_application_hurts_only_itself() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut stack = Stack::new(SERVER);
        let (mut good, mut bad) = (App::join(&mut stack, 1), App::join(&mut stack, 2));
        good.listen(9, 80, 64);
        good.tell(Command::AcceptConnection { lease: 9 });
        bad.listen(10, 81, 64);
        bad.tell(Command::AcceptConnection { lease: 10 });
        let mut now = Instant::from_millis(2000);
        stack.round(now);
        for slot in 0..4 {
            bad.connect(slot, Endpoint::new(SERVER, 81));
            bad.connect(slot + 8, Endpoint::new(SERVER, 80));
        }
        stack.round(now);
        while bad.accept().is_some() {}
        stack.round(now);
        let area = bad.layout.library;
        for step in 0..2_000u32 {
            for _ in 0..20 {
                let at = rng.below(area as u32 / 8) as usize * 8;
                bad.arena.store64(at, rng.next_u64() >> (rng.below(8) * 8));
            }
            // Commands that look right, with fields that are not.
            for _ in 0..4 {
                let mut payload = [0; atoll_ipc::ring::MESSAGE_BYTES];
                payload.fill_with(|| rng.next_u32() as u8);
                payload[0] = rng.below(15) as u8;
                let mut producer = Producer::resume(&bad.arena, bad.layout.commands, COMMANDS);
                let _ = producer.push(&bad.arena, 0, &payload);
            }
            now += Duration::from_micros(700);
            stack.round(now);
            if step % 100 == 0 {
                let client = good.connect(step / 100, Endpoint::new(SERVER, 80));
                stack.round(now);
                let mut served = false;
                good.write(client, b"ping");
                stack.round(now);
                while let Some(server) = good.accept() {
                    let got = good.read(server, 10);
                    served |= got == b"ping";
                    good.close(server);
                }
                stack.round(now);
                good.close(client);
                stack.round(now);
                assert!(served, "seed {seed} step {step}: the good application is not served");
            }
        }
        stack.transport.close_session(now, SessionId(2));
        stack.round(now);
    }
}

#[test]
fn mutated_frames_never_panic_and_others_are_served() {
    let mut rng = Rng::new(5);
    let (mut a, mut b) = (Stack::new(SERVER), Stack::new(CLIENT));
    let (mut server_app, mut client_app) = (App::join(&mut a, 1), App::join(&mut b, 1));
    server_app.listen(9, 80, 5);
    server_app.tell(Command::AcceptConnection { lease: 9 });
    let mut now = Instant::from_millis(2000);
    a.round(now);
    let client = client_app.connect(0, Endpoint::new(SERVER, 80));
    let mut server = None;
    let mut got = 0;
    for round in 0..3000u32 {
        now += Duration::from_millis(1);
        a.round(now);
        b.round(now);
        let frames: Vec<_> =
            a.wire.outside.drain(..).map(|f| (true, f)).chain(b.wire.outside.drain(..).map(|f| (false, f))).collect();
        for (from_a, (frame, partial)) in frames {
            for _ in 0..4 {
                let mut bad = frame.clone();
                for _ in 0..1 + rng.below(3) {
                    let at = rng.below(bad.len() as u32) as usize;
                    bad[at] = rng.next_u32() as u8;
                }
                bad.truncate(rng.below(bad.len() as u32 + 1) as usize + 1);
                // A wrong checksum is found; a frame that says it has none yet is believed, so spoil only the others.
                let to = if from_a { &mut b } else { &mut a };
                to.transport.handle_frame(now, &bad, ChecksumOffload::Unknown, false);
            }
            let to = if from_a { &mut b } else { &mut a };
            to.transport.handle_frame(now, &frame, offload(partial), false);
        }
        server = server.or_else(|| server_app.accept());
        if round % 3 == 0 && client_app.slot(client.0).addresses().1.port != 0 {
            client_app.write(client, b"0123456789");
        }
        if let Some(server) = server {
            let bytes = server_app.read(server, 1000);
            assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == b'0' + ((got + i) % 10) as u8));
            got += bytes.len();
        }
    }
    assert!(got > 5000, "{got} octets arrived");
}
