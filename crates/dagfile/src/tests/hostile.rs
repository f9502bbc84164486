//! Texts made to hurt: each is refused in a moment, with a reason, on a small stack.

use std::time::Duration;

use proptest::prelude::*;

use super::files;
use crate::{Attached, Diagnostics, MOST_EMBEDDED, MOST_TASKS, MOST_TEXT, parse};

/// The promise is one second in an optimised build. Tests run unoptimised, which is up to ten times
/// slower; and they count processor time, since the machine may be busy with others.
const PATIENCE: Duration = Duration::from_secs(5);

fn refused(text: &str) -> String {
    // The stack of a worker thread, not the larger one of the main thread.
    let text = text.to_owned();
    let reading = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        let refusal: Diagnostics = parse("f.yaml", &text, &files()).unwrap_err();
        let worked = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        (refusal.to_string(), Duration::new(worked.tv_sec as u64, worked.tv_nsec as u32))
    });
    let (refusal, worked) = reading.unwrap().join().expect("no panic");
    assert!(worked < PATIENCE, "it took {worked:?}");
    refusal
}

#[test]
fn a_text_that_is_too_long_is_not_even_parsed() {
    let errors = refused(&"x".repeat(MOST_TEXT + 1));
    assert_eq!(
        errors,
        format!("f.yaml:1: a dag file may have at most 4 MiB; this one has {} bytes", MOST_TEXT + 1)
    );
}

#[test]
fn deep_nesting_is_refused_before_a_tree_exists() {
    for text in [
        "[".repeat(MOST_TEXT),
        "{a: ".repeat(MOST_TEXT / 4),
        "- ".repeat(100_000),
        (0..1500).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
    ] {
        let errors = refused(&text);
        assert!(errors.contains("nested more than 64 levels deep"), "{errors}");
    }
}

#[test]
fn depth_cannot_be_hidden_in_aliases() {
    let mut text = String::from("a0: &a0 x\n");
    for n in 1..1000 {
        text += &format!("a{n}: &a{n} {}*a{}{}\n", "[".repeat(10), n - 1, "]".repeat(10));
    }
    assert!(refused(&text).contains("nested more than 64 levels deep"));
}

#[test]
fn an_alias_bomb_is_refused_before_it_goes_off() {
    let mut text = String::from("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
    for n in 1..30 {
        let again = vec![format!("*a{}", n - 1); 9].join(", ");
        text += &format!("a{n}: &a{n} [{again}]\n");
    }
    assert!(refused(&text).contains("expands to more than 32 MiB"));
}

#[test]
fn an_alias_inside_its_own_anchor_is_refused() {
    assert!(refused("id: &a [*a]").contains("f.yaml:1:"));
}

#[test]
fn a_hundred_thousand_tasks_are_counted_and_refused() {
    let tasks: String = (0..100_000).map(|n| format!("  t{n}: {{empty: true}}\n")).collect();
    let errors = refused(&format!("id: d\ntasks:\n{tasks}"));
    assert_eq!(errors, "f.yaml:3: the dag has 100000 tasks; the most a dag may have is 20000");
}

#[test]
fn defaults_are_not_copied_without_end() {
    let tasks: String = (0..MOST_TASKS).map(|n| format!("  t{n}: {{empty: true}}\n")).collect();
    let errors =
        refused(&format!("id: d\ndefaults: {{ env: {{ A: {} }} }}\ntasks:\n{tasks}", "x".repeat(1 << 20)));
    assert!(errors.contains("defaults are too large for 20000 tasks"), "{errors}");
}

#[test]
fn a_cycle_through_every_task_is_found_and_told_briefly() {
    let last = MOST_TASKS - 1;
    let tasks: String = (0..MOST_TASKS)
        .map(|n| format!("  t{n}: {{empty: true, needs: t{}}}\n", if n == 0 { last } else { n - 1 }))
        .collect();
    let errors = refused(&format!("id: d\ntasks:\n{tasks}"));
    assert_eq!(
        errors,
        "f.yaml:3: tasks wait for each other in a cycle: t0 → t19999 → t19998 → t19997 → t19996 → t19995 → t19994 \
         → t19993 → … 19992 more … → t0"
    );
}

#[test]
fn many_mistakes_are_cut_short_and_guesses_are_bounded() {
    let stem = "x".repeat(150);
    let tasks: String =
        (0..MOST_TASKS).map(|n| format!("  {stem}{n}: {{empty: true, needs: {stem}y{n}}}\n")).collect();
    let text = format!("id: d\ntasks:\n{tasks}");
    let text =
        if text.len() > MOST_TEXT { text[..MOST_TEXT].rsplit_once('\n').unwrap().0.to_owned() } else { text };
    let errors = refused(&text);
    assert_eq!(errors.lines().count(), 21, "{errors}");
    assert!(errors.ends_with("… and more; these are the first 20"));
}

#[test]
fn files_of_a_dag_are_limited_together() {
    let half = "#".repeat(MOST_EMBEDDED / 2 + 1);
    let beside = super::Beside::default().with("a.py", &half, false).with("b.py", &half, false);
    let errors =
        parse("f.yaml", "id: d\ntasks: { a: { python: a.py }, b: { python: b.py } }", &beside).unwrap_err();
    assert!(errors.to_string().contains("at most 1 MiB together"), "{errors}");
}

#[test]
fn a_dag_of_ten_thousand_tasks_is_read() {
    let tasks: String = (0..10_000)
        .map(|n| {
            let needs = if n == 0 { String::new() } else { format!("needs: [t{}]", n - 1) };
            format!(
                "  t{n}:\n    {needs}\n    bash: echo \"{{{{ ds }}}}\" task {n}\n    env: {{ N: \"{n}\" }}\n"
            )
        })
        .collect();
    let text = format!("id: d\nschedule: \"@daily\"\ndefaults: {{ retries: 2 }}\ntasks:\n{tasks}");
    let spec = parse("f.yaml", &text, &Attached::default()).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(spec.tasks.len(), 10_000);
    assert_eq!(spec.tasks[9_999].needs[0].as_str(), "t9998");
}

const SEED: &str = "id: d\nschedule: '@daily'\nparams: { a: { type: integer, default: 1 } }\ndefaults: &d { retries: 1 }\n\
tasks:\n  a: { bash: 'echo {{ ds }}', env: { X: '{% if a %}{% endif %}' } }\n  b:\n    needs: [a]\n    python: |\n      print(1)\n\
  c: { needs: b, http: { url: 'https://e.org', body: { a: [1, 2.5, null, ~] } }, resources: { cpu: 1m } }\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC*") {
        let _ = parse("f", &text, &Attached::default());
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse("f", &String::from_utf8_lossy(&bytes), &Attached::default());
    }

    #[test]
    fn no_mutation_of_a_good_file_makes_the_reader_panic(
        cuts in prop::collection::vec((0usize..600, 0usize..40, "[\\[\\]{}:,&*!|>'\"%#@ \\n\\t~a-c0-9-]{0,6}"), 1..6)
    ) {
        let mut text: Vec<char> = SEED.chars().collect();
        for (at, length, insertion) in cuts {
            let at = at.min(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, insertion.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(errors) = parse("f", &text, &Attached::default()) {
            prop_assert!(!errors.list.is_empty());
            prop_assert!(errors.list.iter().all(|error| error.line >= 1 && error.column >= 1), "{errors}");
        }
    }
}
