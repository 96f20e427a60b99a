//! Draws numbers as lines and bars in SVG. It is written by hand, because that is shorter than calling a
//! library.

use std::fmt::Write;

/// A picture with two axes.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// The title above the picture.
    pub title: String,
    /// The axis along the bottom.
    pub x: Axis,
    /// The axis along the left side.
    pub y: Axis,
    /// The series, in the order in which they are drawn.
    pub series: Vec<Series>,
    /// Names along the bottom instead of numbers. Series are bars then, and `x` is the number of the name.
    pub names: Vec<String>,
}

/// An axis of a picture.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// The label: what the axis shows, with its unit.
    pub label: String,
    /// Whether each step is ten times the one before.
    pub log: bool,
    /// The least and the greatest value shown; `None` for those of the series.
    pub range: Option<(f64, f64)>,
}

/// A line, row of marks or set of bars.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The values.
    pub points: Vec<(f64, f64)>,
    /// The style in which the series is drawn.
    pub style: Style,
}

/// The styles of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line.
    Line,
    /// A line of dashes.
    Dashed,
    /// Marks without a line, for what was measured on a real machine.
    Marks,
    /// A filled area, on top of those before it.
    Area,
}

impl Axis {
    /// Creates a linear axis.
    pub fn new(label: &str) -> Axis {
        Axis { label: label.into(), log: false, range: None }
    }

    /// Creates a logarithmic axis. Values must be greater than 0; others are left out.
    pub fn log(label: &str) -> Axis {
        Axis { log: true, ..Axis::new(label) }
    }

    /// Limits the axis to this range.
    pub fn from_to(self, low: f64, high: f64) -> Axis {
        Axis { range: Some((low, high)), ..self }
    }
}

impl Series {
    /// Creates a series that is drawn as a line.
    pub fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, style: Style::Line }
    }

    /// Changes the style of the series.
    pub fn styled(self, style: Style) -> Series {
        Series { style, ..self }
    }
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 56.0;
/// Colours that people who see colours differently can tell apart (Okabe and Ito), used in turn.
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999", "#b2a300"];

/// An axis with its ends, and its place in the picture.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        let shown = values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = axis.range.unwrap_or(match (axis.log, low <= high) {
            (_, false) => (1.0, 10.0),
            (true, true) => (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil())),
            (false, true) => (low.min(0.0), high + (high - low.min(0.0)) * 0.05),
        });
        let high = if high > low { high } else { low + 1.0 };
        Scale { low, high, log: axis.log, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low).log10() - self.low.log10()) / (self.high.log10() - self.low.log10())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (first, last) = (self.low.log10().ceil() as i32, self.high.log10().floor() as i32);
            return (first..=last).map(|power| 10f64.powi(power)).collect();
        }
        let raw = (self.high - self.low) / 6.0;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|step| *step >= raw).unwrap_or(power);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|n| n as f64 * step).take_while(|tick| *tick <= self.high * (1.0 + 1e-9)).collect()
    }
}

impl Chart {
    /// Returns the picture as SVG.
    pub fn to_svg(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>",
            escape(&self.title)
        );
        let stacked = self.stacked();
        let all = || stacked.iter().flat_map(|series| series.points.iter());
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let x = if self.names.is_empty() {
            Scale::new(&self.x, all().map(|point| point.0), LEFT, right)
        } else {
            Scale { low: -0.5, high: self.names.len() as f64 - 0.5, log: false, from: LEFT, to: right }
        };
        let y = Scale::new(&self.y, all().map(|point| point.1), bottom, TOP);
        self.axes(&mut out, &x, &y);
        for (number, series) in
            stacked.iter().enumerate().rev().filter(|(_, series)| series.style == Style::Area)
        {
            draw(&mut out, series, number, &x, &y);
        }
        for (number, series) in stacked.iter().enumerate().filter(|(_, series)| series.style != Style::Area) {
            if self.names.is_empty() {
                draw(&mut out, series, number, &x, &y);
            } else {
                bars(&mut out, series, number, stacked.len(), &x, &y);
            }
        }
        for (number, series) in self.series.iter().enumerate() {
            let (at, colour) = (TOP + 14.0 + number as f64 * 18.0, COLOURS[number % COLOURS.len()]);
            let _ = writeln!(
                out,
                "<rect x=\"{:.0}\" y=\"{:.0}\" width=\"12\" height=\"{}\" fill=\"{colour}\"/>\
                 <text x=\"{:.0}\" y=\"{at:.0}\">{}</text>",
                right + 12.0,
                at - if series.style == Style::Line || series.style == Style::Dashed { 6.0 } else { 10.0 },
                if series.style == Style::Line || series.style == Style::Dashed { 3 } else { 10 },
                right + 30.0,
                escape(&series.name)
            );
        }
        out + "</svg>\n"
    }

    /// Stacks areas on top of each other.
    fn stacked(&self) -> Vec<Series> {
        let mut below: Vec<f64> = Vec::new();
        let lift = |series: &Series| {
            let mut series = series.clone();
            if series.style == Style::Area {
                below.resize(series.points.len().max(below.len()), 0.0);
                for (point, below) in series.points.iter_mut().zip(&mut below) {
                    *below += point.1;
                    point.1 = *below;
                }
            }
            series
        };
        self.series.iter().map(lift).collect()
    }

    fn axes(&self, out: &mut String, x: &Scale, y: &Scale) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                number(tick)
            );
        }
        if self.names.is_empty() {
            for tick in x.ticks() {
                let at = x.at(tick);
                let _ = writeln!(
                    out,
                    "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#eee\"/>\
                     <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                    bottom + 16.0,
                    number(tick)
                );
            }
        }
        for (at, name) in self.names.iter().enumerate() {
            let (at, below) = (x.at(at as f64), bottom + 12.0);
            let _ = writeln!(
                out,
                "<text x=\"{at:.1}\" y=\"{below}\" font-size=\"9\" text-anchor=\"end\" \
                 transform=\"rotate(-28 {at:.1} {below})\">{}</text>",
                escape(name)
            );
        }
        let middle = (TOP + bottom) / 2.0;
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text x=\"16\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 16 \
             {middle})\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 10.0,
            escape(&self.x.label),
            escape(&self.y.label)
        );
    }
}

fn draw(out: &mut String, series: &Series, number: usize, x: &Scale, y: &Scale) {
    let colour = COLOURS[number % COLOURS.len()];
    let is_shown =
        |&&(a, b): &&(f64, f64)| a.is_finite() && b.is_finite() && (!x.log || a > 0.0) && (!y.log || b > 0.0);
    let points: Vec<(f64, f64)> =
        series.points.iter().filter(is_shown).map(|&(a, b)| (x.at(a), y.at(b))).collect();
    let Some(&(first, _)) = points.first() else { return };
    let last = points[points.len() - 1].0;
    if series.style == Style::Marks {
        for (a, b) in points {
            let _ = writeln!(out, "<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"4\" fill=\"{colour}\"/>");
        }
        return;
    }
    let path: Vec<String> = points.iter().map(|(a, b)| format!("{a:.1} {b:.1}")).collect();
    let path = path.join("L");
    let _ = match series.style {
        Style::Area => {
            let bottom = y.from;
            writeln!(out, "<path d=\"M{path}L{last:.1} {bottom}L{first:.1} {bottom}Z\" fill=\"{colour}\"/>")
        }
        style => {
            let dash = if style == Style::Dashed { " stroke-dasharray=\"6 4\"" } else { "" };
            writeln!(out, "<path d=\"M{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>")
        }
    };
}

fn bars(out: &mut String, series: &Series, number: usize, count: usize, x: &Scale, y: &Scale) {
    let width = (x.at(1.0) - x.at(0.0)) * 0.8 / count as f64;
    for &(name, value) in &series.points {
        let left = x.at(name) + (number as f64 - count as f64 / 2.0) * width;
        let top = y.at(value);
        let _ = writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
            width * 0.95,
            y.from - top,
            COLOURS[number % COLOURS.len()]
        );
    }
}

/// Returns a number in a short form: 1.5M, 20k, 0.05.
fn number(value: f64) -> String {
    let (value, unit) = match value.abs() {
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(style: Style) -> Chart {
        let series = |name: &str, k: f64| Series::line(name, vec![(1.0, k), (2.0, 2.0 * k)]).styled(style);
        Chart {
            title: "a < b".into(),
            x: Axis::new("cores"),
            y: Axis::log("us"),
            series: vec![series("one", 1.0), series("two", 10.0)],
            names: Vec::new(),
        }
    }

    #[test]
    fn every_series_and_label_is_in_the_picture() {
        for style in [Style::Line, Style::Dashed, Style::Marks, Style::Area] {
            let svg = chart(style).to_svg();
            for text in ["a &lt; b", "cores", "one", "two", "</svg>"] {
                assert!(svg.contains(text), "{text}");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn greater_values_lie_higher_and_within_the_axes() {
        let scale = Scale::new(&Axis::log("us"), [1.0, 20.0, 1000.0].into_iter(), 400.0, 40.0);
        assert_eq!((scale.at(1.0), scale.at(1000.0), scale.at(5000.0)), (400.0, 40.0, 40.0));
        assert!(scale.at(20.0) < 400.0 && scale.at(20.0) > 40.0);
        assert_eq!(scale.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        let scale = Scale::new(&Axis::new("n"), [0.0, 30.0].into_iter(), 0.0, 1.0);
        assert_eq!(scale.ticks(), [0.0, 10.0, 20.0, 30.0]);
    }

    #[test]
    fn areas_lie_on_top_of_each_other() {
        let stacked = chart(Style::Area).stacked();
        assert_eq!(stacked[1].points, [(1.0, 11.0), (2.0, 22.0)]);
    }

    #[test]
    fn nothing_makes_a_picture_too() {
        assert!(Chart::default().to_svg().ends_with("</svg>\n"));
        let bars = Chart { names: vec!["TS8".into()], ..chart(Style::Line) };
        assert!(bars.to_svg().contains("rotate(-28"));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [1_500_000.0, 20_000.0, 9000.0, 0.05, 0.0].map(number),
            ["1.5M", "20k", "9000", "0.05", "0"]
        );
    }
}
