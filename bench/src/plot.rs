//! Bars over seconds, as a PNG: drawn by hand, since a library would bring fonts along.

use std::io::Write as _;

use anyhow::Result;
use flate2::Compression;
use flate2::write::ZlibEncoder;

/// What happened in one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bar {
    /// The green part.
    pub(crate) good: u32,
    /// The red part, on top of it.
    pub(crate) bad: u32,
}

const WIDTH: usize = 1000;
const HEIGHT: usize = 320;

/// Room for the numbers.
const LEFT: usize = 60;
const BOTTOM: usize = 30;
const TOP: usize = 15;
const RIGHT: usize = 30;

type Colour = [u8; 3];
const PAPER: Colour = [255; 3];
const INK: Colour = [60; 3];
const GRID: Colour = [225; 3];
const GREEN: Colour = [46, 139, 87];
const RED: Colour = [205, 60, 50];

/// The digits, each of five rows of three pixels.
const DIGITS: [[u8; 5]; 10] = [
    [7, 5, 5, 5, 7],
    [2, 6, 2, 2, 7],
    [7, 1, 7, 4, 7],
    [7, 1, 7, 1, 7],
    [5, 5, 7, 1, 1],
    [7, 4, 7, 1, 7],
    [7, 4, 7, 5, 7],
    [7, 1, 1, 2, 2],
    [7, 5, 7, 5, 7],
    [7, 5, 7, 1, 7],
];

/// How many pixels a pixel of a digit is wide.
const SCALE: usize = 2;

struct Canvas(Vec<Colour>);

impl Canvas {
    fn fill(&mut self, x: usize, y: usize, width: usize, height: usize, colour: Colour) {
        for row in y..(y + height).min(HEIGHT) {
            let end = (x + width).min(WIDTH);
            self.0[row * WIDTH + x.min(end)..row * WIDTH + end].fill(colour);
        }
    }

    /// Writes a number that ends at `right`.
    fn number(&mut self, number: u64, right: usize, y: usize) {
        let text = number.to_string();
        let mut x = right.saturating_sub(text.len() * 4 * SCALE);
        for digit in text.bytes() {
            for (row, bits) in DIGITS[usize::from(digit - b'0')].iter().enumerate() {
                for column in (0..3).filter(|column| bits & (4 >> column) != 0) {
                    self.fill(x + column * SCALE, y + row * SCALE, SCALE, SCALE, INK);
                }
            }
            x += 4 * SCALE;
        }
    }
}

/// A round step that divides `whole` into ten parts at most.
fn step(whole: u64) -> u64 {
    let steps = (0..).flat_map(|power| [1, 2, 5].map(|n| n * 10_u64.pow(power)));
    steps.take(50).find(|step| whole / step <= 10).unwrap_or(whole)
}

/// Draws bars, the first at zero seconds. Where several share a column, the highest is shown.
pub(crate) fn png(bars: &[Bar]) -> Result<Vec<u8>> {
    let mut canvas = Canvas(vec![PAPER; WIDTH * HEIGHT]);
    let (width, height, floor) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM, HEIGHT - BOTTOM);
    let seconds = bars.len().max(1);
    let highest = bars.iter().map(|bar| u64::from(bar.good + bar.bad)).max().unwrap_or(0).max(1);
    let up = |value: u64| (value as usize * height).div_ceil(highest as usize);
    for value in (0..=highest).step_by(step(highest) as usize) {
        canvas.fill(LEFT, floor - up(value), width, 1, GRID);
        canvas.number(value, LEFT - 8, floor - up(value).max(5));
    }
    for column in 0..width {
        let first = column * seconds / width;
        let end = ((column + 1) * seconds / width).max(first + 1).min(seconds);
        let Some(bar) = bars.get(first..end).and_then(|shared| shared.iter().max_by_key(|bar| bar.good + bar.bad)) else { continue };
        let (good, all) = (up(u64::from(bar.good)), up(u64::from(bar.good + bar.bad)));
        canvas.fill(LEFT + column, floor - all, 1, all - good, RED);
        canvas.fill(LEFT + column, floor - good, 1, good, GREEN);
    }
    canvas.fill(LEFT, floor, width, 1, INK);
    canvas.fill(LEFT - 1, TOP, 1, height + 1, INK);
    for second in (0..=seconds).step_by(step(seconds as u64) as usize) {
        let x = LEFT + second * width / seconds;
        canvas.fill(x, floor, 1, 6, INK);
        canvas.number(second as u64, x + 12, floor + 10);
    }
    encode(&canvas)
}

fn encode(canvas: &Canvas) -> Result<Vec<u8>> {
    let mut pixels = ZlibEncoder::new(vec![], Compression::default());
    for row in canvas.0.chunks(WIDTH) {
        // No filter.
        pixels.write_all(&[0])?;
        pixels.write_all(row.as_flattened())?;
    }
    let mut header = vec![];
    header.extend((WIDTH as u32).to_be_bytes());
    header.extend((HEIGHT as u32).to_be_bytes());
    // Eight bits a channel, three channels, nothing special.
    header.extend([8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", header), (b"IDAT", pixels.finish()?), (b"IEND", vec![])] {
        file.extend(u32::try_from(data.len())?.to_be_bytes());
        let start = file.len();
        file.extend(kind);
        file.extend(data);
        file.extend(crc32fast::hash(&file[start..]).to_be_bytes());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn bars_stand_where_their_seconds_are() {
        let bars = [Bar { good: 1, bad: 1 }, Bar::default(), Bar { good: 2, bad: 0 }];
        let file = png(&bars).unwrap();
        let data = file.windows(4).position(|four| four == b"IDAT").unwrap();
        let size = u32::from_be_bytes(file[data - 4..data].try_into().unwrap()) as usize;
        let mut pixels = vec![];
        flate2::read::ZlibDecoder::new(&file[data + 4..data + 4 + size]).read_to_end(&mut pixels).unwrap();
        assert_eq!(pixels.len(), HEIGHT * (1 + WIDTH * 3));
        let at = |x: usize, y: usize| &pixels[y * (1 + WIDTH * 3) + 1 + x * 3..][..3];
        let (low, high) = (HEIGHT - BOTTOM - 10, TOP + 10);
        let middle = |bar: usize| LEFT + (2 * bar + 1) * (WIDTH - LEFT - RIGHT) / 6;
        assert_eq!((at(middle(0), low), at(middle(0), high)), (&GREEN[..], &RED[..]));
        assert_eq!((at(middle(1), low), at(middle(1), high)), (&PAPER[..], &PAPER[..]));
        assert_eq!((at(middle(2), low), at(middle(2), high)), (&GREEN[..], &GREEN[..]));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([1, 10, 11, 99, 930, 1000].map(step), [1, 1, 2, 10, 100, 100]);
    }

    #[test]
    fn nothing_can_be_drawn_too() {
        assert!(png(&[]).unwrap().starts_with(b"\x89PNG"));
    }
}
