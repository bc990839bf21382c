//! The plot: panels with one line for each variant, as an SVG that is legible on light and on dark pages.

use std::fmt::Write as _;

use super::record::Second;
use super::{Course, Fault, Outage, Phases, Variant};

/// The size of a panel's drawing area.
const WIDTH: f64 = 330.0;
const HEIGHT: f64 = 150.0;
/// The space around it.
const LEFT: f64 = 54.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 38.0;
/// The height of the title and the legend above the panels.
const HEAD: f64 = 56.0;
/// Steps of an axis are one of these times a power of ten.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];

/// What a panel shows.
struct Panel {
    title: &'static str,
    value: fn(&Second) -> f64,
    scale: Scale,
}

/// The vertical axis.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scale {
    /// From 0 to at least this.
    Linear(f64),
    /// In powers of ten, from the first to at least the second.
    Logarithmic(f64, f64),
}

const PANELS: [Panel; 6] = [
    Panel { title: "rebuilds per second", value: |second| second.builds as f64, scale: Scale::Linear(10.0) },
    Panel {
        title: "most rebuilds of one key at once",
        value: |second| second.at_once as f64,
        scale: Scale::Linear(5.0),
    },
    Panel { title: "hit ratio, %", value: Second::hit_ratio, scale: Scale::Linear(100.0) },
    Panel {
        title: "p99 of the other servers' keys, ms",
        value: |second| second.p99.as_secs_f64() * 1000.0,
        scale: Scale::Logarithmic(0.1, 100.0),
    },
    Panel {
        title: "refused sets per second",
        value: |second| second.refused as f64,
        scale: Scale::Linear(10.0),
    },
    Panel {
        title: "deleted values served per second",
        value: |second| second.deleted as f64,
        scale: Scale::Linear(10.0),
    },
];

/// The panels of this load: without a hang, nothing is deleted.
fn panels(outage: Outage) -> &'static [Panel] {
    match outage.fault {
        Fault::Kill => &PANELS[..4],
        Fault::Hang => &PANELS,
    }
}

/// The colour of a line on light and on dark pages alike, and its dashes.
fn style(variant: Variant) -> (&'static str, &'static str) {
    match variant {
        Variant::Direct => ("#8a8f98", "6 3"),
        Variant::Twemproxy => ("#d9822b", "2 2"),
        Variant::Ejecting => ("#a463d1", "8 3 2 3"),
        Variant::Kennel => ("#1f9d6b", "none"),
    }
}

/// The whole plot.
pub(crate) fn svg(outage: Outage, phases: Phases, courses: &[Course]) -> String {
    let (panel_width, panel_height) = (LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    let rows = panels(outage).len().div_ceil(2) as f64;
    let (width, height) = (2.0 * panel_width, HEAD + rows * panel_height);
    let [fault, end] = outage.marks();
    // Text and axes have a colour of their own for dark pages; without support for it, a grey that both can do with.
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\" \
         role=\"img\">\n<title>{title}</title>\n<style>\n.text {{ fill: #57606a }}\n.axis {{ stroke: #8a8f98; stroke-width: 1; fill: none \
         }}\n.grid {{ stroke: #8a8f98; stroke-opacity: 0.25; stroke-width: 1 }}\n.mark {{ stroke: #8a8f98; stroke-dasharray: 3 3 }}\n.line {{ \
         fill: none; stroke-width: 2; stroke-linejoin: round }}\n@media (prefers-color-scheme: dark) {{ .text {{ fill: #b6bdc6 }} \
         }}\n</style>\n<text class=\"text\" x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{title}</text>\n",
        title = format_args!(
            "One of 3 servers is {fault} after {} s, and {end} after {} s",
            phases.healthy,
            phases.healthy + phases.down
        ),
    );
    let mut x = LEFT;
    for Course { variant, .. } in courses {
        let (colour, dashes) = style(*variant);
        let _ = writeln!(
            text,
            "<line class=\"line\" x1=\"{x}\" y1=\"40\" x2=\"{}\" y2=\"40\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\"/>\n<text \
             class=\"text\" x=\"{}\" y=\"44\">{}</text>",
            x + 28.0,
            x + 34.0,
            variant.name()
        );
        x += 34.0 + 7.0 * variant.name().len() as f64 + 16.0;
    }
    for (i, panel) in panels(outage).iter().enumerate() {
        let (column, row) = ((i % 2) as f64, (i / 2) as f64);
        let origin = (column * panel_width + LEFT, HEAD + row * panel_height + TOP);
        let _ = writeln!(text, "<g transform=\"translate({} {})\">", origin.0, origin.1);
        draw(&mut text, panel, outage, phases, courses);
        text += "</g>\n";
    }
    text + "</svg>\n"
}

fn draw(text: &mut String, panel: &Panel, outage: Outage, phases: Phases, courses: &[Course]) {
    let values = courses.iter().flat_map(|course| course.seconds.iter().map(panel.value));
    let axis = Axis::new(panel.scale, values.fold(0.0, f64::max));
    let x = |second: f64| second / phases.total() as f64 * WIDTH;
    let _ =
        writeln!(text, "<text class=\"text\" x=\"0\" y=\"-20\" font-weight=\"bold\">{}</text>", panel.title);
    for tick in &axis.ticks {
        let y = axis.y(*tick);
        let _ = writeln!(
            text,
            "<line class=\"grid\" x1=\"0\" y1=\"{y:.1}\" x2=\"{WIDTH}\" y2=\"{y:.1}\"/><text class=\"text\" x=\"-6\" y=\"{:.1}\" \
             text-anchor=\"end\">{tick}</text>",
            y + 4.0
        );
    }
    for second in (0..=phases.total()).step_by(5) {
        let _ = writeln!(
            text,
            "<text class=\"text\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{second}</text>",
            x(second as f64),
            HEIGHT + 15.0
        );
    }
    let _ = writeln!(
        text,
        "<text class=\"text\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">seconds</text>",
        WIDTH / 2.0,
        HEIGHT + 29.0
    );
    for (mark, second) in outage.marks().into_iter().zip([phases.healthy, phases.healthy + phases.down]) {
        let x = x(second as f64);
        let _ = writeln!(
            text,
            "<line class=\"mark\" x1=\"{x:.1}\" y1=\"-4\" x2=\"{x:.1}\" y2=\"{HEIGHT}\"/><text class=\"text\" x=\"{x:.1}\" y=\"-7\" \
             font-size=\"10\">{mark}</text>"
        );
    }
    let _ = writeln!(text, "<path class=\"axis\" d=\"M0 0 V{HEIGHT} H{WIDTH}\"/>");
    for course in courses {
        let (colour, dashes) = style(course.variant);
        let _ = write!(
            text,
            "<polyline class=\"line\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\" points=\""
        );
        for (n, second) in course.seconds.iter().enumerate() {
            // A value is that of the whole second, so its point is in the middle.
            let _ = write!(text, "{:.1},{:.1} ", x(n as f64 + 0.5), axis.y((panel.value)(second)));
        }
        text.push_str("\"/>\n");
    }
}

/// A vertical axis that has room for all values.
struct Axis {
    scale: Scale,
    ticks: Vec<f64>,
}

impl Axis {
    fn new(scale: Scale, highest: f64) -> Axis {
        match scale {
            Scale::Linear(least) => {
                let most = highest.max(least);
                let power = 10_f64.powf((most / 5.0).log10().floor());
                let steps = STEPS.map(|step| step * power).into_iter().chain([10.0 * power]);
                // At most five steps.
                let step = steps.into_iter().find(|step| most / step <= 5.0).unwrap_or(most);
                let count = (most / step).ceil() as usize;
                let ticks: Vec<f64> = (0..=count).map(|n| n as f64 * step).collect();
                Axis { scale: Scale::Linear(count as f64 * step), ticks }
            }
            Scale::Logarithmic(lowest, least) => {
                let decades = (highest.max(least) / lowest).log10().ceil() as i32;
                let ticks: Vec<f64> = (0..=decades).map(|n| rounded(lowest * 10_f64.powi(n))).collect();
                Axis { scale: Scale::Logarithmic(lowest, lowest * 10_f64.powi(decades)), ticks }
            }
        }
    }

    /// From the top of the drawing area.
    fn y(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear(highest) => value / highest,
            Scale::Logarithmic(lowest, highest) => {
                (value.max(lowest) / lowest).log10() / (highest / lowest).log10()
            }
        };
        HEIGHT * (1.0 - share)
    }
}

/// Without the error of a multiplication, for a label.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outage::OUTAGES;
    use std::time::Duration;

    #[test]
    fn an_axis_has_room_for_the_highest_value_and_few_round_steps() {
        let ticks = |scale, highest| Axis::new(scale, highest).ticks;
        assert_eq!(ticks(Scale::Linear(100.0), 99.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(Scale::Linear(10.0), 171.0), [0.0, 50.0, 100.0, 150.0, 200.0]);
        assert_eq!(ticks(Scale::Linear(5.0), 0.0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(ticks(Scale::Logarithmic(0.1, 100.0), 520.0), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        let axis = Axis::new(Scale::Logarithmic(0.1, 100.0), 0.0);
        assert_eq!([axis.y(0.01), axis.y(100.0)], [HEIGHT, 0.0]);
    }

    #[test]
    fn every_variant_has_a_line_in_every_panel_and_an_entry_in_the_legend() {
        let second =
            Second { reads: 4, hits: 3, builds: 50, p99: Duration::from_millis(2), ..Second::default() };
        let course = |variant| Course { variant, seconds: vec![second.clone(); 6] };
        let courses = [course(Variant::Ejecting), course(Variant::Kennel)];
        let svg = svg(OUTAGES[1], Phases::QUICK, &courses);
        assert_eq!(svg.matches("<polyline").count(), 2 * PANELS.len());
        assert_eq!(svg.matches(">twemproxy, auto_eject_hosts<").count(), 1);
        assert_eq!((svg.matches(">stopped<").count(), svg.matches(">continued<").count()), (6, 6));
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
        assert!(!svg.contains("NaN"), "{svg}");
    }
}
