//! A page of several files, what a picture of it shows, and how pictures are compared.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::collections::HashSet;
use std::fs;
use std::io::BufReader;
use std::path::Path;

/// What a browser loads of it.
pub const FILES: [&str; 7] =
    ["/page.html", "/page.css", "/page.js", "/tile.png", "/ground.png", "/shape.svg", "/noise.png"];

/// The window in which it is shown, in pixels.
pub const WINDOW: (u32, u32) = (800, 640);

/// The sides of what has one colour.
const SIDE: u32 = 100;
/// What has one colour, each by another file: an image, an image of the style sheet, a picture of lines, a
/// surface that a script paints, and the style sheet itself.
const TILE: [u8; 3] = [200, 40, 60];
const GROUND: [u8; 3] = [120, 60, 200];
const SHAPE: [u8; 3] = [240, 170, 20];
const PAINTED: [u8; 3] = [20, 120, 240];
const STYLED: [u8; 3] = [30, 160, 70];
/// The image in which each pixel is another one: 180 KB, which nothing compresses.
const NOISE: (u32, u32) = (300, 200);

/// How far a channel of a colour may be from what was painted.
const NEAR: u8 = 3;

/// Writes the page into a folder. Its text has this token in it.
pub fn write(folder: &Path, token: &str) {
    let file = |name: &str, content: &[u8]| fs::write(folder.join(name), content).unwrap();
    let html = format!(
        "<!doctype html>
<!-- {token} -->
<meta charset=\"utf-8\"><title>A page</title>
<link rel=\"stylesheet\" href=\"page.css\">
<img id=\"tile\" src=\"tile.png\" decoding=\"sync\"><img id=\"shape\" src=\"shape.svg\" decoding=\"sync\">
<img id=\"noise\" src=\"noise.png\" decoding=\"sync\"><div id=\"ground\"></div><div id=\"styled\"></div>
<canvas id=\"painted\" width=\"{SIDE}\" height=\"{SIDE}\"></canvas>
<script src=\"page.js\"></script>
"
    );
    file("page.html", html.as_bytes());
    let colour = |[red, green, blue]: [u8; 3]| format!("rgb({red}, {green}, {blue})");
    let css = format!(
        "html, body {{ margin: 0; background: white; overflow: hidden; }}
img, div, canvas {{ position: absolute; top: 10px; width: {SIDE}px; height: {SIDE}px; }}
#tile {{ left: 10px; }}
#shape {{ left: 120px; }}
#ground {{ left: 230px; background: url(ground.png); }}
#styled {{ left: 340px; background: {}; }}
#painted {{ left: 450px; }}
#noise {{ left: 10px; top: 120px; width: {}px; height: {}px; }}
",
        colour(STYLED),
        NOISE.0,
        NOISE.1
    );
    file("page.css", css.as_bytes());
    let script = format!(
        "const surface = document.getElementById('painted').getContext('2d');
surface.fillStyle = '{}';
surface.fillRect(0, 0, {SIDE}, {SIDE});
",
        colour(PAINTED)
    );
    file("page.js", script.as_bytes());
    let svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{SIDE}\" height=\"{SIDE}\">\
         <rect width=\"{SIDE}\" height=\"{SIDE}\" fill=\"{}\"/></svg>",
        colour(SHAPE)
    );
    file("shape.svg", svg.as_bytes());
    let plain = |colour: [u8; 3]| encoded((SIDE, SIDE), &colour.repeat((SIDE * SIDE) as usize));
    file("tile.png", &plain(TILE));
    file("ground.png", &plain(GROUND));
    file("noise.png", &encoded(NOISE, &noise((NOISE.0 * NOISE.1 * 3) as usize)));
}

fn encoded((width, height): (u32, u32), pixels: &[u8]) -> Vec<u8> {
    let mut made = Vec::new();
    let mut encoder = png::Encoder::new(&mut made, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(pixels).unwrap();
    writer.finish().unwrap();
    made
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    bytes.take(length).collect()
}

/// What a browser showed.
pub struct Picture {
    size: (u32, u32),
    pixels: Vec<[u8; 4]>,
}

impl Picture {
    pub fn read(file: &Path) -> Self {
        let mut decoder = png::Decoder::new(BufReader::new(fs::File::open(file).unwrap()));
        let to_bytes = png::Transformations::normalize_to_color8() | png::Transformations::ALPHA;
        decoder.set_transformations(to_bytes);
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let told = reader.next_frame(&mut bytes).unwrap();
        assert_eq!(told.color_type, png::ColorType::Rgba);
        bytes.truncate(told.buffer_size());
        let pixels = bytes.chunks_exact(4).map(|pixel| [pixel[0], pixel[1], pixel[2], pixel[3]]);
        Self { size: (told.width, told.height), pixels: pixels.collect() }
    }

    /// All that the page is made of is in the picture: else two that are the same would show nothing.
    #[track_caller]
    pub fn shows_the_page(&self) {
        for (what, colour) in [
            ("tile.png", TILE),
            ("ground.png", GROUND),
            ("shape.svg", SHAPE),
            ("page.js", PAINTED),
            ("page.css", STYLED),
        ] {
            let is_near = |pixel: &&[u8; 4]| {
                colour.iter().zip(pixel.iter()).all(|(painted, seen)| painted.abs_diff(*seen) <= NEAR)
            };
            let count = self.pixels.iter().filter(is_near).count();
            let (least, size) = ((SIDE * SIDE) as usize * 95 / 100, self.size);
            assert!(count >= least, "{what}: {count} pixels of {size:?} have its colour, not {least}");
        }
        let colours = self.pixels.iter().collect::<HashSet<_>>().len();
        // Of 60 000 pixels hardly two are the same.
        assert!(colours > 50_000, "noise.png: there are {colours} colours");
    }

    /// It is the same as another one, in each pixel.
    #[track_caller]
    pub fn is_as(&self, what: &str, other: &Self) {
        assert_eq!(self.size, other.size, "{what}: the picture has another size");
        let pairs = self.pixels.iter().zip(&other.pixels);
        let differ = pairs.filter(|(one, other)| one != other).count();
        assert_eq!(differ, 0, "{what}: so many pixels of {} are others", self.pixels.len());
    }
}
