//! `cargo xtask model`: explores the protocol completely, then makes sure that the checker finds each mutant.

use std::process::ExitCode;

use tenure_protocol::{
    Backend, Exploration, Found, Mutant, Protocol, Size, Summary, Trouble, explore, hunt, stopwatch,
};

/// One line of the table.
struct World {
    size: Size,
    backend: Backend,
    what: &'static str,
}

fn size(replicas: u8, epochs: u8, attempts: u8, trouble: Trouble) -> Size {
    Size { replicas, epochs, attempts, trouble, troubles_at_once: 1 }
}

/// What every change is held against: a minute of one core at most, with all mutants.
fn worlds() -> Vec<World> {
    let together = |size, what| World { size, backend: Backend::Together, what };
    let apart = |size, what| World { size, backend: Backend::Apart, what };
    vec![
        together(size(3, 3, 2, Trouble::HINTS), "false news of crashes"),
        together(size(3, 3, 1, Trouble::ANY), "and deleted leases, lost acquires"),
        apart(size(2, 2, 2, Trouble::NONE), "leases kept apart from the state"),
    ]
}

/// Minutes, and gigabytes of memory.
fn large_worlds() -> Vec<World> {
    let together = |size, what| World { size, backend: Backend::Together, what };
    let apart = |size, what| World { size, backend: Backend::Apart, what };
    vec![
        together(size(3, 3, 2, Trouble::ANY), "any one trouble"),
        together(Size { troubles_at_once: 3, ..size(3, 3, 1, Trouble::ANY) }, "all troubles at once"),
        together(size(2, 3, 3, Trouble::HINTS), "three attempts"),
        together(size(3, 4, 2, Trouble::NONE), "four epochs"),
        apart(size(3, 3, 1, Trouble::NONE), "leases kept apart from the state"),
        apart(size(2, 3, 2, Trouble::HINTS), "the same, two attempts"),
    ]
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let worlds = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => worlds(),
        ["--large"] => large_worlds(),
        _ => {
            eprintln!("error: expected nothing, or --large");
            return ExitCode::FAILURE;
        }
    };
    let started = stopwatch();
    let explored = explore_all(&worlds);
    println!();
    let hunted = hunt_all();
    println!("\n{:.1} s in all", started.elapsed().as_secs_f64());
    if explored && hunted { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn explore_all(worlds: &[World]) -> bool {
    println!("replicas epochs attempts agents      states  transitions depth seconds");
    let mut explored = vec![];
    for World { size, backend, what } in worlds {
        let found = explore(Protocol::new(*size, *backend, None));
        println!(
            "{:>8} {:>6} {:>8} {:>6} {:>11} {:>12} {:>5} {:>7.1}  {what}",
            size.replicas,
            size.epochs,
            size.attempts,
            2,
            found.states,
            found.transitions,
            found.depth,
            found.took.as_secs_f64(),
        );
        complain(&found);
        explored.push(found);
    }
    let together = Summary::of(&explored);
    println!("\nalways:");
    together.kept.iter().for_each(|name| println!("  {name}"));
    println!("sometimes:");
    together.reached.iter().for_each(|name| println!("  {name}"));
    for (event, count) in &together.events {
        println!("  {} ({count} times)", event.name());
    }
    explored.iter().all(Exploration::is_fine)
}

fn complain(found: &Exploration) {
    for Found { property, story } in &found.broken {
        println!("  BROKEN: {property}, in {} steps:", story.len());
        story.iter().for_each(|step| println!("    {step}"));
    }
    found.unreached.iter().for_each(|name| println!("  NEVER REACHED: {name}"));
    for (event, _) in found.events.iter().filter(|(_, count)| *count == 0) {
        println!("  NEVER HAPPENED: {}", event.name());
    }
}

fn hunt_all() -> bool {
    println!("{:<36} depth  broken promise", "mutant");
    let mut fine = true;
    for mutant in Mutant::ALL {
        match hunt(Protocol::new(size(2, 3, 2, Trouble::ANY), Backend::Together, Some(mutant))) {
            Some(found) => println!("{:<36} {:>5}  {}", mutant.name(), found.depth(), found.property),
            None => {
                println!("{:<36} SURVIVES", mutant.name());
                fine = false;
            }
        }
    }
    fine
}
