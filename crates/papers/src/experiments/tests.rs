use super::*;
use crate::costs::Table;

/// A quick one, with what it says.
fn run(name: &str) -> Outcome {
    let costs = Table::built_in().costs().expect("a whole table");
    let mut context = Context { costs, quick: true, real: None, cachegrind: None, progress: &mut |_| () };
    let outcome = Experiment::find(name).expect(name).run(&mut context).expect(name);
    println!("{name}: {}\n{}", outcome.sentence, outcome.to_csv());
    outcome
}

#[test]
fn x() {
    for e in EXPERIMENTS.iter().filter(|e| e.name != "pika-fig12") {
        let t = std::time::Instant::now();
        run(e.name);
        println!("{:?}", t.elapsed());
    }
}
