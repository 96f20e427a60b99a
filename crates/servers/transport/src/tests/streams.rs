use super::*;

#[test]
fn two_sockets_of_one_stack_talk_over_the_internal_link() {
    for addr in [0x7f00_0001, SERVER] {
        let mut stack = Stack::new(SERVER);
        let mut app = App::join(&mut stack, 1);
        let now = Instant::from_millis(2000);
        app.listen(9, 80, 5);
        app.tell(Command::AcceptConnection { lease: 9 });
        let client = app.connect(0, Endpoint::new(addr, 80));
        stack.round(now);
        let server = app.accept().expect("offered");
        assert_eq!(app.write(client, b"GET /"), 5);
        stack.round(now);
        assert_eq!(app.read(server, 100), b"GET /");
        assert_eq!(app.write(server, b"200 OK"), 6);
        app.close(server);
        stack.round(now);
        assert_eq!(app.read(client, 100), b"200 OK");
        assert_eq!(app.slot(client.0).replica_flags() & REPLICA_FIN, REPLICA_FIN);
        app.close(client);
        for ms in 1..100 {
            stack.round(now + Duration::from_millis(ms));
        }
        assert!(app.is_done(client) && app.is_done(server));
        assert_eq!(stack.transport.connections.len(), 0);
        assert_eq!(stack.transport.time_waits.len(), 1);
        let buffers: usize = stack.transport.sessions.iter().map(|(_, s)| s.pool.used_bytes(&s.pool_memory)).sum();
        assert_eq!(buffers, 0);
        stack.round(now + Duration::from_secs(200));
        assert_eq!(stack.transport.time_waits.len(), 0);
    }
}

#[test]
fn a_port_without_listener_refuses() {
    let mut stack = Stack::new(SERVER);
    let mut app = App::join(&mut stack, 1);
    let client = app.connect(0, Endpoint::new(SERVER, 81));
    stack.round(Instant::from_millis(2000));
    assert_eq!(app.slot(client.0).error(), Cause::ConnectionRefused);
    assert_eq!(app.slot(client.0).replica_flags() & REPLICA_CLOSED, REPLICA_CLOSED);
    app.close(client);
    stack.round(Instant::from_millis(2001));
    assert!(app.is_done(client));
}

/// Two stacks joined by a wire that loses, doubles and delays frames: both streams arrive whole, and then there is silence.
#[test]
fn streams_survive_a_bad_wire_between_two_stacks() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (mut a, mut b) = (Stack::new(SERVER), Stack::new(CLIENT));
        let (mut server_app, mut client_app) = (App::join(&mut a, 1), App::join(&mut b, 1));
        server_app.listen(9, 80, 5);
        server_app.tell(Command::AcceptConnection { lease: 9 });
        let mut now = Instant::from_millis(2000);
        a.round(now);
        let client = client_app.connect(0, Endpoint::new(SERVER, 80));
        let mut server = None;
        let up: Vec<u8> = (0..200_000u32).map(|i| (i * 7 + (i >> 8)) as u8).collect();
        let down: Vec<u8> = (0..150_000u32).map(|i| (i * 13 + (i >> 7)) as u8).collect();
        let (mut up_sent, mut down_sent) = (0, 0);
        let (mut up_got, mut down_got): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        let mut flying: Vec<(Instant, bool, Vec<u8>, bool)> = Vec::new();
        for _ in 0..200_000 {
            now += Duration::from_micros(500);
            for (is_a, stack) in [(true, &mut a), (false, &mut b)] {
                stack.round(now);
                while let Some((frame, partial)) = stack.wire.outside.pop_front() {
                    if rng.below(100) < 2 {
                        continue;
                    }
                    let copies = 1 + u32::from(rng.below(100) < 2);
                    for _ in 0..copies {
                        let delay = Duration::from_micros(200 + u64::from(rng.below(100) / 97) * 3000);
                        flying.push((now + delay, is_a, frame.clone(), partial));
                    }
                }
            }
            let (due, later): (Vec<_>, Vec<_>) = flying.drain(..).partition(|(at, ..)| *at <= now);
            flying = later;
            for (_, from_a, frame, partial) in due {
                let to = if from_a { &mut b } else { &mut a };
                to.transport.handle_frame(now, &frame, offload(partial), false);
            }
            if server.is_none() {
                server = server_app.accept();
            }
            client_app.poll();
            server_app.poll();
            if client_app.slot(client.0).addresses().1.port != 0 && up_sent < up.len() {
                up_sent += client_app.write(client, &up[up_sent..]);
                if up_sent == up.len() {
                    client_app.shut_send(client);
                }
            }
            down_got.extend(client_app.read(client, rng.below(20_000) as usize));
            if let Some(server) = server {
                up_got.extend(server_app.read(server, rng.below(20_000) as usize));
                if down_sent < down.len() {
                    down_sent += server_app.write(server, &down[down_sent..]);
                    if down_sent == down.len() {
                        server_app.shut_send(server);
                    }
                }
                let ended = |app: &App, s: (SlotId, u32)| app.slot(s.0).replica_flags() & REPLICA_FIN != 0;
                if up_got.len() == up.len()
                    && down_got.len() == down.len()
                    && ended(&client_app, client)
                    && ended(&server_app, server)
                {
                    break;
                }
            }
        }
        assert!(up_got == up, "seed {seed}: {} of {} up", up_got.len(), up.len());
        assert!(down_got == down, "seed {seed}: {} of {} down", down_got.len(), down.len());
    }
}
