//! Bitmaps of the pictures, for readers that show no SVG.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Family, Query};
use resvg::usvg::{Options, Tree};

/// Pixels for each unit of the picture.
const SCALE: f32 = 1.5;

/// Writes `picture` (SVG) as a bitmap. False, and nothing is written, if the system has no font for its
/// words.
pub(crate) fn write_png(picture: &Path, bitmap: &Path) -> Result<bool> {
    let Some(fonts) = fonts() else { return Ok(false) };
    let text = fs::read_to_string(picture).with_context(|| format!("cannot read {}", picture.display()))?;
    let tree = Tree::from_str(&text, &Options { fontdb: Arc::new(fonts), ..Options::default() })?;
    let size = tree.size().scale_by(SCALE).context("the picture is too large")?.to_int_size();
    let mut pixels = Pixmap::new(size.width(), size.height()).context("the picture is too large")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    let bytes = pixels.encode_png()?;
    fs::write(bitmap, bytes).with_context(|| format!("cannot write {}", bitmap.display()))?;
    Ok(true)
}

/// The system's fonts, if there are any. The one without serifs is whatever the system calls so, or else any.
fn fonts() -> Option<Database> {
    let mut fonts = Database::new();
    fonts.load_system_fonts();
    let families = || fonts.faces().filter_map(|face| face.families.first()).map(|(name, _)| name);
    let any = families().find(|name| name.ends_with("Sans")).or_else(|| families().next())?.clone();
    if fonts.query(&Query { families: &[Family::SansSerif], ..Query::default() }).is_none() {
        fonts.set_sans_serif_family(any);
    }
    Some(fonts)
}
