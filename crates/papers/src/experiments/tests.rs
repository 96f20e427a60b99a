use super::*;
use crate::costs::Table;

/// Runs the quick form of an experiment under fixed seeds, and checks that it reproduces the paper's result.
fn reproduces(name: &str) {
    reproduces_with(name, &Table::built_in());
}

fn reproduces_with(name: &str, table: &Table) -> Outcome {
    let outcome = made(name, table, None).expect(name);
    assert!(outcome.reproduced, "{}\n{}", outcome.sentence, outcome.to_csv());
    let width = outcome.rows[0].len();
    assert!(outcome.rows.len() > 2 && outcome.rows.iter().all(|row| row.len() == width));
    assert!(outcome.charts.iter().all(|(_, chart)| chart.to_svg().contains("<path")));
    outcome
}

fn made(name: &str, table: &Table, real: Option<&str>) -> Result<Outcome, ExperimentError> {
    let costs = table.costs().expect("a whole table");
    let mut context = Context { costs, quick: true, real, cachegrind: None, progress: &mut |_| () };
    Experiment::find(name).expect(name).run(&mut context)
}

/// Checks that with Pika's costs of messages the configurations and schemes differ as they do in the paper.
/// With this stack's costs, which are lower, they hardly do.
#[test]
fn with_pikas_costs_configurations_and_schemes_are_as_far_apart_as_there() {
    let table = Table::parse(include_str!("../../pika.toml")).expect("a whole table");
    reproduces_with("pika-fig11", &table);
    let schemes = reproduces_with("pika-fig8", &table);
    let share = |row: &&Vec<String>| row[3].parse::<f64>().expect("a number");
    let unfiltered =
        schemes.rows.iter().find(|row| row[0] == "Unfiltered 2" && row[1] == "32").expect("32 cores");
    assert!(share(&unfiltered) < 50.0, "{}", schemes.sentence);
}

#[test]
fn throughput_grows_with_the_cores() {
    reproduces("pika-fig4a");
}

#[test]
fn an_accept_that_asks_serves_fewer() {
    reproduces("pika-accept");
}

#[test]
fn connection_managers_spend_little_on_each_other() {
    reproduces("pika-table3");
}

#[test]
fn tournament_is_no_worse_than_the_kernels_one_queue_and_far_better_than_one_for_each() {
    reproduces("pika-fig5");
}

#[test]
fn estimates_follow_the_truth() {
    reproduces("pika-fig6");
}

#[test]
fn under_imbalance_schemes_without_balance_break_first() {
    reproduces("pika-fig7");
}

#[test]
fn under_uniform_load_only_unfiltered_schemes_lose() {
    reproduces("pika-fig8");
}

#[test]
fn who_slows_a_little_keeps_most_of_its_connections_in_a_tournament_only() {
    reproduces("pika-fig10");
}

#[test]
fn a_split_connection_manager_costs_time() {
    reproduces("pika-table4");
    reproduces("pika-table5");
}

#[test]
fn replicas_and_web_servers_add_up() {
    reproduces("neat-fig6");
}

#[test]
fn replicas_help_where_there_are_many_connections() {
    let outcome = made("neat-fig12", &Table::built_in(), None).expect("it runs");
    let rate = |way: &str, stack: &str, connections: &str| {
        let found = outcome
            .rows
            .iter()
            .find(|row| row[0] == way && row[1] == stack && row[3] == connections && row[2] != "1");
        found.map(|row| row[4].parse::<f64>().expect("a number")).expect("there is such a row")
    };
    for way in ["looking always", "looking if few talk"] {
        let [one, two, three] = ["NEaT 1x", "NEaT 2x", "NEaT 3x"].map(|stack| rate(way, stack, "64"));
        assert!(two > 1.3 * one && three > 1.1 * two, "{}", outcome.to_csv());
        assert!(rate(way, "Multi 2x", "64") > 1.2 * rate(way, "Multi 1x", "64"), "{}", outcome.to_csv());
    }
    // Cores that sleep less serve few connections faster.
    assert!(rate("looking always", "Multi 2x", "32") > rate("looking if few talk", "Multi 2x", "32"));
}

#[test]
fn a_driver_with_much_to_do_neither_sleeps_nor_looks_for_work() {
    reproduces("neat-table2");
}

#[test]
fn more_replicas_keep_more_state_and_serve_more() {
    let outcome = reproduces_with("neat-fig13", &Table::built_in());
    let of = |configuration: &str, column: usize| {
        let found = outcome.rows.iter().find(|row| row[1] == configuration).expect("it is there");
        found[column].parse::<f64>().expect("a percentage")
    };
    assert_eq!(
        [4, 5].map(|column| of("TS2LS2CM2", column)),
        [50.0, 50.0],
        "it is one process whatever fails"
    );
    assert!(of("TS2CM2+IP2LS2", 4) > 60.0, "{}", outcome.to_csv());
    assert!(outcome.rows[1..].iter().all(|row| row[6] == "100.0"), "{}", outcome.to_csv());
}

#[test]
fn what_deaths_cost_layouts_and_calls_are_those_that_were_measured() {
    for name in ["neat-faults", "neat-recovery", "neat-layout", "neat-calls"] {
        let outcome = reproduces_with(name, &Table::built_in());
        assert!(outcome.sentence.contains("on the machine of docs/measurements.md"), "{}", outcome.sentence);
        assert!(made(name, &Table::built_in(), Some("nothing\nof\nthis,is,1\n")).is_err(), "{name}");
    }
}

/// Changes the measured deaths by one connection, lost or kept against the paper, and checks that the verdict
/// changes. So the verdict follows from measurements and not from an assumption.
#[test]
fn deaths_that_cost_something_else_are_not_what_the_paper_says() {
    let with = |own: &str, lines: &str| {
        let mut text = String::from("series,x,y\n");
        for kind in ["TS2LS2CM2:TSIPLSCM", "TS2CM2+IP2LS2:TSCM", "TS2CM2+IP2LS2:IPLS"] {
            let stateless = if kind.contains("TSIP") {
                own
            } else if kind.contains(":TS") {
                "0"
            } else {
                "10"
            };
            text += &format!(
                "{kind} stateful,10,10\n{kind} stateless,10,{stateless}\n{kind} stateless others,10,10\n"
            );
        }
        text + lines
    };
    let run = |name: &str, text: &str| made(name, &Table::built_in(), Some(text)).expect("it runs");
    let all = run("neat-faults", &with("0", ""));
    assert!(all.reproduced && all.sentence.contains("on this machine"), "{}", all.sentence);
    for (own, lines) in [
        ("1", ""),
        ("0", "TS2LS2CM2:TSIPLSCM stateful,10,9\n"),
        ("0", "TS2CM2+IP2LS2:IPLS stateless,10,9\n"),
        ("0", "TS2CM2+IP2LS2:TSCM stateful others,10,9\n"),
    ] {
        let outcome = run("neat-faults", &with(own, lines));
        assert!(!outcome.reproduced, "{lines}{}", outcome.sentence);
    }
    let layouts = "series,x,y\ntext,0,100\ntext,1,100\nconnection,0,0\nconnection,1,1\nconnection,2,0\n";
    assert!(!run("neat-layout", layouts).reproduced);
    let layouts =
        "series,x,y\ntext,0,100\ntext,1,101\n".to_string() + &"connection,0,0\nconnection,1,1\n".repeat(50);
    assert!(!run("neat-layout", &layouts).reproduced, "one after the other is not at random");
    assert!(
        !run("neat-calls", "series,x,y\nwithout a system call,1,50\nwithout a system call,256,98.9\n")
            .reproduced
    );
    let waits = "series,x,y\nTS,5,50\nTS,9,99\nTS (others),250,100\n";
    assert!(!run("neat-recovery", waits).reproduced);
}

#[test]
fn more_processes_serve_more_and_nobody_notices_that_they_come_and_go() {
    let outcome = reproduces_with("neat-scaling", &Table::built_in());
    assert!(outcome.sentence.contains("on the machine of docs/measurements.md"), "{}", outcome.sentence);
    assert!(made("neat-scaling", &Table::built_in(), Some("nothing\nof\nthis,is,1\n")).is_err());
}

#[test]
fn what_was_measured_for_real_is_drawn_beside() {
    let real = Some("series,x,y\nkernel,1,10000\nkernel,2,19000\nnonsense\n");
    let outcome = made("pika-fig4a", &Table::built_in(), real).expect("it runs");
    assert!(outcome.charts[0].1.to_svg().contains("kernel (measured)"));
}

#[test]
fn every_name_is_known_once() {
    for experiment in EXPERIMENTS {
        let found = Experiment::find(experiment.name).expect(experiment.name);
        assert!(found.name == experiment.name && found.about == experiment.about && !found.about.is_empty());
    }
    assert!(Experiment::find("pika-fig99").is_none());
}
