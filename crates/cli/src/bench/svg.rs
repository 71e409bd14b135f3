//! A picture of bars.

use std::fmt::Write;

/// Height of a bar, and the space after the bars of a row, in pixels.
const BAR: usize = 14;
const GAP: usize = 10;
/// Where bars begin, and how long the longest is.
const LEFT: usize = 140;
const LONGEST: f64 = 420.0;
const COLOURS: [&str; 2] = ["#4477aa", "#ee6677"];

/// How a picture begins.
pub const HEAD: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"660\"";

/// Two bars a row, with their values.
pub fn bars(title: &str, series: [&str; 2], rows: &[(&str, [f64; 2])]) -> String {
    let most = rows.iter().flat_map(|(_, values)| values).copied().fold(f64::MIN_POSITIVE, f64::max);
    let height = 60 + rows.len() * (2 * BAR + GAP);
    let mut svg = format!(
        "{HEAD} height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    for (at, (name, colour)) in series.iter().zip(COLOURS).enumerate() {
        let x = LEFT + at * 80;
        let _ = writeln!(svg, "<rect x=\"{x}\" y=\"30\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"39\">{}</text>", x + 14, escaped(name));
    }
    for (row, (name, values)) in rows.iter().enumerate() {
        let y = 52 + row * (2 * BAR + GAP);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 8,
            y + BAR + 4,
            escaped(name)
        );
        for (at, (value, colour)) in values.iter().zip(COLOURS).enumerate() {
            let (y, width) = (y + at * BAR, value / most * LONGEST);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>",
                BAR - 2
            );
            let (x, y) = (LEFT as f64 + width + 4.0, y + BAR - 4);
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" font-size=\"10\">{value:.0}</text>");
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let svg = bars("a < b", ["get", "put"], &[("one", [50.0, 100.0]), ("two", [25.0, 0.0])]);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        for width in ["210.0", "420.0", "105.0", "0.0"] {
            assert!(svg.contains(&format!("width=\"{width}\"")), "{width}: {svg}");
        }
    }
}
