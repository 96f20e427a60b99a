use super::*;

fn plan(text: &str) -> Plan {
    text.parse::<Notation>().unwrap().plan()
}

/// Returns the letters of the components (`TS IP LS CM`) that each server has.
fn letters(text: &str) -> Vec<String> {
    let letter = |process: &Process, component: Component| {
        if process.has(component) { &component.name()[..1] } else { "-" }
    };
    plan(text)
        .processes()
        .iter()
        .map(|p| Component::ALL.map(|component| letter(p, component)).concat())
        .collect()
}

#[test]
fn each_process_has_what_the_notation_gives_it() {
    assert_eq!(letters("TS2LS2CM2"), ["TILC", "TILC"]);
    assert_eq!(letters("TS4CM4LS1"), ["TILC", "TI-C", "TI-C", "TI-C"]);
    assert_eq!(letters("TS2CM2+LS1"), ["TI-C", "TI-C", "--L-"]);
    assert_eq!(letters("LS3+TS1CM1"), ["TI-C", "--L-", "--L-", "--L-"]);
    assert_eq!(letters("TS1LS3CM1"), ["TILC", "--L-", "--L-"]);
    assert_eq!(letters("TS2CM2+IP1LS1"), ["T--C", "T--C", "-IL-"]);
    assert_eq!(letters("TS2+IP2+LS1+CM2"), ["T---", "T---", "-I--", "-I--", "--L-", "---C", "---C"]);
    assert_eq!(letters("TS2CM2+IP2LS3"), ["T--C", "T--C", "-IL-", "-IL-", "--L-"]);
    assert_eq!(letters("TS2CM2+IP2LS1"), ["T--C", "T--C", "-IL-", "-I--"]);
}

#[test]
fn link_servers_take_turns_in_serving() {
    let serves = |text: &str| -> Vec<usize> {
        let plan = plan(text);
        plan.servers_of(Component::Ts).map(|ts| plan.server_for(ts, Component::Ls)).collect()
    };
    assert_eq!(serves("TS4LS4CM4"), [0, 1, 2, 3]);
    assert_eq!(serves("TS4CM4LS1"), [0, 0, 0, 0]);
    assert_eq!(serves("TS4CM4LS2"), [0, 1, 0, 1]);
    assert_eq!(serves("TS4CM4+LS2"), [4, 5, 4, 5]);
    assert_eq!(serves("TS2CM2+LS8"), [2, 3]);
}

#[test]
fn queues_follow_the_link_servers() {
    let plan = plan("TS2CM2+LS2");
    assert_eq!((plan.queues(), plan.queue_of(0), plan.queue_of(3)), (2, None, Some(1)));
}

#[test]
fn a_link_server_knows_whom_it_serves() {
    let replicas = |text: &str, server: usize| plan(text).replicas_of(server).collect::<Vec<_>>();
    assert_eq!([4, 5].map(|server| replicas("TS4CM4+LS2", server)), [[0, 2], [1, 3]]);
    assert_eq!([2, 3, 4].map(|server| replicas("TS2CM2+LS3", server)), [[0], [1], [0]]);
    assert_eq!([0, 1].map(|server| replicas("TS2CM2LS1", server)), [vec![0, 1], vec![]]);
}

#[test]
fn a_group_arrives_where_its_owner_is_served_and_no_queue_stays_empty() {
    for ts in 1..=8u8 {
        for ls in 1..=8u8 {
            let plan = plan(&format!("TS{ts}CM{ts}+LS{ls}"));
            let mut used = vec![0; usize::from(ls)];
            for group in 0..FLOW_GROUPS {
                let owner = (group % usize::from(ts)) as u8;
                let queue = plan.queue_for(group, owner);
                used[usize::from(queue)] += 1;
                if ls <= ts {
                    let server = plan.server_for(usize::from(owner), Component::Ls);
                    assert_eq!(plan.queue_of(server), Some(usize::from(queue)));
                } else {
                    assert_eq!(queue % ts, owner);
                }
            }
            assert!(used.iter().all(|&groups| groups >= FLOW_GROUPS / 20), "TS{ts}CM{ts}+LS{ls}: {used:?}");
        }
    }
}

#[test]
fn connection_managers_take_turns_in_choosing() {
    let chosen_by = |text: &str| -> Vec<usize> {
        let plan = plan(text);
        plan.servers_of(Component::Ts).map(|ts| plan.server_for(ts, Component::Cm)).collect()
    };
    assert_eq!(chosen_by("TS4LS4CM4"), [0, 1, 2, 3]);
    assert_eq!(chosen_by("TS4LS4CM2"), [0, 1, 0, 1]);
    assert_eq!(chosen_by("TS2LS2+CM1"), [2, 2]);
    assert_eq!(chosen_by("TS2+LS2+CM2"), [4, 5]);
    let plan = plan("TS3+LS1+CM2");
    assert_eq!((plan.manager_of(0), plan.manager_of(4), plan.manager_of(5)), (None, Some(0), Some(1)));
    assert_eq!([4, 5].map(|server| plan.managed_by(server).collect::<Vec<_>>()), [vec![0, 2], vec![1]]);
    assert!(plan.are_managers_apart() && !self::plan("TS2LS2CM1").are_managers_apart());
}

#[test]
fn ip_servers_take_turns_and_send_over_a_link_server() {
    let served_by = |text: &str| -> Vec<usize> {
        let plan = plan(text);
        plan.servers_of(Component::Ts).map(|ts| plan.server_for(ts, Component::Ip)).collect()
    };
    assert_eq!(served_by("TS4LS4CM4"), [0, 1, 2, 3]);
    assert_eq!(served_by("TS4CM4+IP1LS1"), [4, 4, 4, 4]);
    assert_eq!(served_by("TS4CM4+IP2+LS1"), [4, 5, 4, 5]);
    let plan = plan("TS4CM4+IP3+LS2");
    assert_eq!(
        [4, 5, 6].map(|server| plan.ip_for(server).collect::<Vec<_>>()),
        [vec![0, 3], vec![1], vec![2]]
    );
    assert_eq!([3, 4, 6, 7].map(|server| plan.ip_of(server)), [None, Some(0), Some(2), None]);
    assert_eq!([4, 5, 6].map(|server| plan.link_of(server)), [7, 8, 7]);
    assert_eq!([2, 3].map(|server| self::plan("TS2CM2+IP2LS1").link_of(server)), [2, 2]);
    assert!(plan.is_ip_apart() && !self::plan("TS2+LS2+CM1").is_ip_apart());
}

#[test]
fn servers_that_serve_each_other_talk_and_no_others() {
    let talk = |notation: &str| {
        let plan = plan(notation);
        (0..plan.processes().len())
            .map(|server| plan.partners_of(server).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    assert_eq!(talk("TS1LS1CM1"), [Vec::<usize>::new()]);
    assert_eq!(talk("TS3LS3CM3"), [vec![1, 2], vec![0, 2], vec![0, 1]]);
    // Link servers do not talk to each other, nor to servers whose IP is in another process, nor to CMs.
    assert_eq!(talk("TS1CM1+LS2"), [vec![1, 2], vec![0], vec![0]]);
    assert_eq!(talk("TS1+IP1+LS1+CM1"), [vec![1, 3], vec![0, 2], vec![1], vec![0]]);
    for notation in ["TS8LS8CM8", "TS8+IP8+LS8+CM8", "TS4LS1CM4"] {
        let plan = plan(notation);
        for (one, other) in
            (0..plan.processes().len()).flat_map(|one| plan.partners_of(one).map(move |it| (one, it)))
        {
            assert!(one != other && plan.talk(other, one), "{notation}: {one} {other}");
        }
    }
}
