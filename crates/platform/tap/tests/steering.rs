//! Does the kernel give each flow to the queue that the table names, on a real device, while the table
//! changes?

mod common;

use std::net::UdpSocket;
use std::os::fd::AsFd;

use atoll_base::{Endpoint, FLOW_GROUPS, FlowGroup, FlowKey, FourTuple};
use atoll_tap::{Steering, SteeringError, Table};
use common::{KERNEL, STACK, in_new_namespace, network, receive};

const KEY: FlowKey = FlowKey { k0: 0x0123_4567, k1: 0x89ab_cdef };
const QUEUES: usize = 4;
const UDP: u8 = 17;
const PORT: u16 = 7;

fn group_of(source_port: u16) -> FlowGroup {
    let (local, remote) =
        (Endpoint::new(STACK.to_bits(), PORT), Endpoint::new(KERNEL.to_bits(), source_port));
    KEY.group(&FourTuple { local, remote })
}

fn table(queue_of: impl Fn(usize) -> usize) -> Box<Table> {
    let mut table = Box::new([0; FLOW_GROUPS]);
    table.iter_mut().enumerate().for_each(|(group, queue)| *queue = queue_of(group) as u8);
    table
}

fn sockets(count: usize) -> Vec<UdpSocket> {
    (0..count).map(|_| UdpSocket::bind((KERNEL, 0)).unwrap()).collect()
}

/// Sends a datagram from each socket and checks where it arrives.
fn assert_steered(tap: &mut atoll_tap::Tap, sockets: &[UdpSocket], table: &Table) {
    for socket in sockets {
        let port = socket.local_addr().unwrap().port();
        socket.send_to(b"x", (STACK, PORT)).unwrap();
        let arrival = receive(tap.queues_mut(), |arrival| arrival.is(UDP) && arrival.source_port() == port);
        assert_eq!(arrival.queue, usize::from(table[usize::from(group_of(port).0)]), "port {port}");
    }
}

#[test]
fn every_flow_arrives_at_the_queue_of_its_group() {
    in_new_namespace(|| {
        let mut tap = network(QUEUES);
        let table = table(|group| group % QUEUES);
        let _steering = Steering::attach(&tap.queues()[0], KEY, &table).unwrap();
        let sockets = sockets(200);
        let used: std::collections::BTreeSet<u8> = sockets
            .iter()
            .map(|socket| table[usize::from(group_of(socket.local_addr().unwrap().port()).0)])
            .collect();
        assert_eq!(used.len(), QUEUES, "200 ports use all queues");
        assert_steered(&mut tap, &sockets, &table);
    });
}

#[test]
fn a_change_of_the_table_takes_effect_at_once() {
    in_new_namespace(|| {
        let mut tap = network(QUEUES);
        let before = table(|_| 0);
        let mut steering = Steering::attach(&tap.queues()[0], KEY, &before).unwrap();
        let sockets = sockets(20);
        assert_steered(&mut tap, &sockets, &before);

        let one = group_of(sockets[0].local_addr().unwrap().port());
        steering.set(one, 3).unwrap();
        assert_steered(&mut tap, &sockets, steering.table());

        let after = table(|group| group / 7 % QUEUES);
        steering.set_all(&after).unwrap();
        assert_eq!(steering.table(), &*after);
        assert_steered(&mut tap, &sockets, &after);
        assert_eq!(steering.set(FlowGroup(FLOW_GROUPS as u16), 0), Err(SteeringError::BadGroup));
    });
}

#[test]
fn steering_outlives_its_owner_and_is_taken_up_by_the_next() {
    in_new_namespace(|| {
        let mut tap = network(QUEUES);
        let before = table(|group| group % QUEUES);
        let steering = Steering::attach(&tap.queues()[0], KEY, &before).unwrap();
        let passed_on = steering.table_fd().try_clone_to_owned().unwrap();
        drop(steering);
        let sockets = sockets(20);
        assert_steered(&mut tap, &sockets, &before);

        let mut steering = Steering::from_table(passed_on).unwrap();
        assert_eq!(steering.table(), &*before);
        let after = table(|group| (group + 1) % QUEUES);
        steering.set_all(&after).unwrap();
        assert_steered(&mut tap, &sockets, &after);
        Steering::detach(&tap.queues()[0]).unwrap();
    });
}

#[test]
fn a_descriptor_that_is_no_table_is_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(Steering::from_table(file.as_fd().try_clone_to_owned().unwrap()).is_err());
}
