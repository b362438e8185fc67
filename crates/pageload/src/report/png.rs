//! Bitmaps of pictures, for whatever shows no SVG.

use super::error::FigureError;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb::Database};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Pixels for each unit of a picture.
const SCALE: f32 = 1.5;
/// No side of a bitmap is longer, in pixels; the waterfall of a huge page becomes smaller instead.
const LONGEST: f32 = 16_000.0;

/// Draw an SVG file again as a bitmap beside it, `.png`. Text is set in a font that the program brings along,
/// so that it looks the same everywhere.
///
/// # Errors
/// [`FigureError`] if a file can't be read or written.
pub(crate) fn write_beside(picture: &Path) -> Result<(), FigureError> {
    let failed = FigureError::of(picture);
    let text = fs::read_to_string(picture).map_err(|error| failed(&error))?;
    let tree = Tree::from_str(&text, &options()).map_err(|error| failed(&error))?;
    let size = tree.size();
    let scale = SCALE.min(LONGEST / size.width().max(size.height()));
    let side = |length: f32| (length * scale).ceil().max(1.0) as u32;
    let mut pixels = Pixmap::new(side(size.width()), side(size.height()))
        .ok_or_else(|| failed(&"too large for a bitmap"))?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
    let bytes = pixels.encode_png().map_err(|error| failed(&error))?;
    fs::write(picture.with_extension("png"), bytes).map_err(|error| failed(&error))
}

fn options() -> Options<'static> {
    let mut fonts = Database::new();
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    Options { fontdb: Arc::new(fonts), font_family: "DejaVu Sans".to_owned(), ..Options::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Dark pixels of a picture with this in it.
    fn ink(content: &str) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let picture = folder.path().join("a.svg");
        let frame = r#"<svg xmlns="http://www.w3.org/2000/svg" width="100" height="40"><rect width="100" height="40" fill="white"/>"#;
        fs::write(&picture, format!("{frame}{content}</svg>")).unwrap();
        write_beside(&picture).unwrap();
        let pixels = Pixmap::load_png(folder.path().join("a.png")).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (150, 60));
        pixels.pixels().iter().filter(|pixel| pixel.red() < 100).count()
    }

    #[test]
    fn words_are_drawn_whatever_fonts_the_system_has() {
        assert_eq!(ink(""), 0);
        let few = ink(r#"<text x="5" y="25" font-family="sans-serif">I</text>"#);
        let many = ink(r#"<text x="5" y="25" font-family="Nonesuch, sans-serif">Speed-up 2×</text>"#);
        assert!(few > 5 && many > 5 * few, "{few} {many}");
    }

    #[test]
    fn a_huge_picture_becomes_a_bitmap_of_bounded_size() {
        let folder = tempfile::tempdir().unwrap();
        let picture = folder.path().join("a.svg");
        fs::write(&picture, r#"<svg xmlns="http://www.w3.org/2000/svg" width="100" height="100000"/>"#)
            .unwrap();
        write_beside(&picture).unwrap();
        let pixels = Pixmap::load_png(folder.path().join("a.png")).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (16, 16_000));
    }
}
