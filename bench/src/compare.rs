//! Two reports side by side: what a change has made faster or slower.
//!
//! Figures are matched by name and unit. A ratio is new over old and says nothing about noise: what surrounds it
//! (machine, samples, p99) helps to judge that, and differences there are said first.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use crate::report::{Figure, Machine, Report};

/// As a person reads it.
pub fn compared(old: &Report, new: &Report) -> String {
    let mut text = String::new();
    for warning in warnings(old, new) {
        writeln!(text, "warning: {warning}").expect("a string takes any text");
    }
    let both: Vec<(&Figure, &Figure)> =
        new.figures.iter().filter_map(|figure| Some((twin(figure, old)?, figure))).collect();
    if !both.is_empty() {
        writeln!(text, "{}", table(&both)).expect("a string takes any text");
    }
    let only = |in_one: &Report, not_in: &Report| -> Vec<String> {
        let alone = in_one.figures.iter().filter(|figure| twin(figure, not_in).is_none());
        alone.map(|figure| format!("{} ({})", figure.name, figure.unit)).collect()
    };
    for (what, figures) in [("new", only(new, old)), ("gone", only(old, new))] {
        for figure in figures {
            writeln!(text, "{what}: {figure}").expect("a string takes any text");
        }
    }
    text
}

fn twin<'a>(figure: &Figure, among: &'a Report) -> Option<&'a Figure> {
    among.figures.iter().find(|other| other.name == figure.name && other.unit == figure.unit)
}

fn warnings(old: &Report, new: &Report) -> Vec<String> {
    let mut warnings = vec![];
    if old.family != new.family {
        warnings
            .push(format!("the old report is of the family {}, the new one of {}", old.family, new.family));
    }
    let facts = |machine: &Machine| {
        [
            ("processor", machine.processor.clone()),
            ("cores", machine.cores.to_string()),
            ("memory in GiB", machine.memory_gib.to_string()),
            ("kernel", machine.kernel.clone()),
        ]
    };
    for ((what, before), (_, now)) in facts(&old.machine).into_iter().zip(facts(&new.machine)) {
        let both_told = !before.is_empty() && !now.is_empty();
        if both_told && before != now {
            warnings.push(format!("another machine: {what} was {before}, is {now}"));
        }
    }
    warnings
}

fn table(figures: &[(&Figure, &Figure)]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["figure", "unit", "p50 old", "new", "ratio", "p99 old", "new", "ratio"]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for (old, new) in figures {
        let mut row = vec![new.name.clone(), new.unit.clone()];
        row.extend(side_by_side(old.p50, new.p50));
        // One sample has no tail.
        let tails = old.samples > 1 || new.samples > 1;
        row.extend(if tails { side_by_side(old.p99, new.p99) } else { Default::default() });
        table.add_row(row);
    }
    table
}

fn side_by_side(old: f64, new: f64) -> [String; 3] {
    // «Beyond the duration» can be negative, and then no ratio means anything.
    let ratio = if old > 0.0 && new >= 0.0 { format!("{:.2}", new / old) } else { "-".into() };
    [format!("{old:.2}"), format!("{new:.2}"), ratio]
}

#[cfg(test)]
mod tests {
    //! Goal: a reader sees what has changed, and what cannot be compared. Method: small reports, whole texts.

    use expect_test::{Expect, expect};

    use super::*;

    fn report(figures: Vec<Figure>) -> Report {
        let machine = Machine {
            processor: "Abacus 3".into(),
            cores: 2,
            memory_gib: 8,
            kernel: "6.1".into(),
            load_before: "0.10".into(),
        };
        Report { family: "placement".into(), machine, figures, skipped: vec![] }
    }

    fn check(old: &Report, new: &Report, expect: Expect) {
        expect.assert_eq(&compared(old, new));
    }

    #[test]
    fn ratios_are_new_over_old_for_median_and_tail() {
        let old = report(vec![Figure::of("chain", "ms", vec![100.0, 100.0, 400.0], None)]);
        let new = report(vec![Figure::of("chain", "ms", vec![50.0, 50.0, 600.0], None)]);
        check(
            &old,
            &new,
            expect![[r#"
            | figure | unit | p50 old |   new | ratio | p99 old |    new | ratio |
            |--------|------|---------|-------|-------|---------|--------|-------|
            | chain  | ms   |  100.00 | 50.00 |  0.50 |  400.00 | 600.00 |  1.50 |
        "#]],
        );
    }

    #[test]
    fn one_sample_has_no_tail_and_what_is_negative_has_no_ratio() {
        let old = report(vec![Figure::one("idle", "%", 2.0), Figure::one("beyond the lease", "ms", -20.0)]);
        let new = report(vec![Figure::one("idle", "%", 3.0), Figure::one("beyond the lease", "ms", 10.0)]);
        check(
            &old,
            &new,
            expect![[r#"
            | figure           | unit | p50 old |   new | ratio | p99 old | new | ratio |
            |------------------|------|---------|-------|-------|---------|-----|-------|
            | idle             | %    |    2.00 |  3.00 |  1.50 |         |     |       |
            | beyond the lease | ms   |  -20.00 | 10.00 |     - |         |     |       |
        "#]],
        );
    }

    #[test]
    fn figures_that_only_one_report_has_are_named() {
        let old = report(vec![Figure::one("memory", "MB", 1.0), Figure::one("chain", "s", 1.0)]);
        let new = report(vec![Figure::one("chain", "ms", 1.0)]);
        check(
            &old,
            &new,
            expect![[r#"
            new: chain (ms)
            gone: memory (MB)
            gone: chain (s)
        "#]],
        );
    }

    #[test]
    fn another_machine_and_another_family_are_said_first() {
        let old = report(vec![Figure::one("idle", "%", 2.0)]);
        let mut new = old.clone();
        new.family = "agents".into();
        new.machine = Machine { cores: 64, kernel: "6.18".into(), load_before: "3.00".into(), ..new.machine };
        check(
            &old,
            &new,
            expect![[r#"
            warning: the old report is of the family placement, the new one of agents
            warning: another machine: cores was 2, is 64
            warning: another machine: kernel was 6.1, is 6.18
            | figure | unit | p50 old |  new | ratio | p99 old | new | ratio |
            |--------|------|---------|------|-------|---------|-----|-------|
            | idle   | %    |    2.00 | 2.00 |  1.00 |         |     |       |
        "#]],
        );
    }

    #[test]
    fn a_machine_that_an_older_report_does_not_name_is_no_difference() {
        let mut old = report(vec![]);
        old.machine.processor.clear();
        check(&old, &report(vec![]), expect![[""]]);
    }
}
