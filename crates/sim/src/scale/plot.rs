//! Curves over virtual time, as SVG that reads well on light and on dark.

use std::fmt::Write;
use std::io;
use std::path::Path;

use super::{Measured, Sample};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 36.0;

struct Curve {
    name: &'static str,
    colour: &'static str,
    value: fn(&Sample, &Sample) -> f64,
}

/// `scale-shards.svg` and `scale-tasks.svg`.
pub fn write_plots(measured: &Measured, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let shards = [
        Curve { name: "most shards of a replica", colour: "#d9822b", value: |_, now| now.most as f64 },
        Curve { name: "fewest", colour: "#2b7bd9", value: |_, now| now.fewest as f64 },
        Curve { name: "shards without an owner", colour: "#c23b3b", value: |_, now| now.unowned as f64 },
    ];
    let rate = |before: &Sample, now: &Sample| {
        let seconds = (now.at - before.at).max(f64::EPSILON);
        (now.ended - before.ended) as f64 / seconds
    };
    let tasks = [Curve { name: "tasks that end each second", colour: "#2b9d5c", value: rate }];
    std::fs::write(folder.join("scale-shards.svg"), draw(measured, "How shards are shared out", &shards))?;
    std::fs::write(folder.join("scale-tasks.svg"), draw(measured, "Work done", &tasks))
}

fn draw(measured: &Measured, title: &str, curves: &[Curve]) -> String {
    let samples = &measured.samples;
    let points = |curve: &Curve| -> Vec<(f64, f64)> {
        let pairs = samples.iter().zip(samples.iter().skip(1));
        pairs.map(|(before, now)| (now.at, (curve.value)(before, now))).collect()
    };
    let lines: Vec<Vec<(f64, f64)>> = curves.iter().map(points).collect();
    let last = samples.last().map_or(1.0, |sample| sample.at).max(1.0);
    let most = lines.iter().flatten().map(|(_, value)| *value).fold(1.0, f64::max);
    let (step, ticks) = steps(most);
    let top = step * ticks as f64;
    let x = |at: f64| LEFT + at / last * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#808890\">\n<text x=\"{LEFT}\" y=\"18\" font-size=\"15\">{title}</text>\n"
    );
    let mut put = |text: String| writeln!(svg, "{text}").expect("a string takes everything");
    for tick in 0..=ticks {
        let value = step * tick as f64;
        put(format!(
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{2:.1}\" y2=\"{2:.1}\" stroke=\"#808890\" stroke-opacity=\"0.25\"/>\
             <text x=\"{1:.0}\" y=\"{3:.1}\" text-anchor=\"end\">{value}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(value),
            y(value) + 4.0
        ));
    }
    let (across, count) = steps(last);
    for tick in 0..=count {
        let at = across * tick as f64;
        if at <= last {
            put(format!(
                "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{at} s</text>",
                x(at),
                HEIGHT - 14.0
            ));
        }
    }
    for moment in &measured.moments {
        put(format!(
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1:.0}\" stroke=\"#808890\" stroke-dasharray=\"3 3\">\
             <title>{2}</title></line>",
            x(moment.at),
            HEIGHT - BOTTOM,
            moment.what
        ));
    }
    let mut legend = LEFT;
    for (curve, line) in curves.iter().zip(&lines) {
        let path: Vec<String> =
            line.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        put(format!(
            "<polyline fill=\"none\" stroke=\"{0}\" stroke-width=\"1.5\" points=\"{1}\"/>\
             <text x=\"{legend:.0}\" y=\"36\" fill=\"{0}\">{2}</text>",
            curve.colour,
            path.join(" "),
            curve.name
        ));
        legend += 24.0 + 7.0 * curve.name.len() as f64;
    }
    svg + "</svg>\n"
}

/// A round step, and how many of them reach beyond the value.
fn steps(most: f64) -> (f64, usize) {
    let rough = most / 4.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|round| round * magnitude).find(|step| *step >= rough);
    let step = step.unwrap_or(magnitude * 10.0);
    (step, (most / step).ceil().max(1.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_reach_beyond_the_value() {
        for most in [0.7, 1.0, 41.0, 99.9, 4_096.0, 12_345.6] {
            let (step, count) = steps(most);
            assert!(step * count as f64 >= most, "{most}: {count} × {step}");
            assert!(count <= 5, "{most}: {count} × {step}");
        }
    }

    #[test]
    fn a_world_without_samples_gives_a_picture_all_the_same() {
        assert!(draw(&Measured::default(), "nothing", &[]).ends_with("</svg>\n"));
    }
}
