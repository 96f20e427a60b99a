use super::*;
use crate::costs::Table;

/// A quick one under fixed seeds; it has to have the paper's shape.
fn reproduces(name: &str) {
    reproduces_with(name, &Table::built_in());
}

fn reproduces_with(name: &str, table: &Table) -> Outcome {
    let costs = table.costs().expect("a whole table");
    let mut context = Context { costs, quick: true, real: None, cachegrind: None, progress: &mut |_| () };
    let outcome = Experiment::find(name).expect(name).run(&mut context).expect(name);
    assert!(outcome.reproduced, "{}\n{}", outcome.sentence, outcome.to_csv());
    let width = outcome.rows[0].len();
    assert!(outcome.rows.len() > 2 && outcome.rows.iter().all(|row| row.len() == width));
    assert!(outcome.charts.iter().all(|(_, chart)| chart.to_svg().contains("<path")));
    outcome
}

/// What messages cost in Pika explains what this stack, where they are cheap, does not show.
#[test]
fn with_pikas_costs_configurations_and_schemes_are_as_far_apart_as_there() {
    let table = Table::parse(include_str!("../../pika.toml")).expect("a whole table");
    reproduces_with("pika-fig11", &table);
    let schemes = reproduces_with("pika-fig8", &table);
    let share = |row: &&Vec<String>| row[3].parse::<f64>().expect("a number");
    let unfiltered = schemes.rows.iter().find(|row| row[0] == "Unfiltered 2" && row[1] == "32").expect("32 cores");
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
fn what_was_measured_for_real_is_drawn_beside() {
    let costs = Table::built_in().costs().expect("a whole table");
    let real = Some("series,x,y\nkernel,1,10000\nkernel,2,19000\nnonsense\n");
    let mut context = Context { costs, quick: true, real, cachegrind: None, progress: &mut |_| () };
    let outcome = Experiment::find("pika-fig4a").expect("there").run(&mut context).expect("it runs");
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
