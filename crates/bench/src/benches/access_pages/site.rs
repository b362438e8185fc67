//! Pages that are loaded: a document and objects, on which host each is, and what waits for what.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use whimbrel_pageload::har::{Entry, Har, Started};
use whimbrel_pageload::page::{Page, Reading};
use whimbrel_pageload::pages;

use super::content::{LEAST, object_path};
use super::server::address;

/// What a head of an answer takes, roughly; the simulator counts it.
const HEAD: u64 = 220;
/// A document's own text around its images, and for each of them.
const PAGE_LIMITS: PageLimits = PageLimits { hosts: 40, objects: 110, bytes: 2_000_000 };
/// Recorded pages that are used.
const RECORDED: usize = 20;

/// Larger recorded pages take too long.
struct PageLimits {
    hosts: usize,
    objects: usize,
    bytes: u64,
}

/// One object of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Object {
    /// The number of its host.
    pub(super) host: u16,
    pub(super) bytes: u64,
}

/// A page. Its first object is the document.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) name: String,
    pub(super) objects: Vec<Object>,
    /// What becomes known when an object is there.
    pub(super) children: Vec<Vec<u16>>,
    /// Whether it was recorded, and not made by hand.
    pub(super) is_recorded: bool,
}

impl Site {
    /// A page with so many objects of so many bytes, all on the document's host and known by the document.
    pub(super) fn handcrafted(name: &str, objects: &[(u16, u64)]) -> Self {
        let mut all = vec![Object { host: 0, bytes: 0 }];
        for (count, bytes) in objects {
            all.extend((0..*count).map(|_| Object { host: 0, bytes: *bytes }));
        }
        let mut children = vec![Vec::new(); all.len()];
        children[0] = (1..all.len() as u16).collect();
        Self { name: name.to_owned(), objects: all, children, is_recorded: false }.with_document(0)
    }

    /// A page with hosts and dependencies: each object has its host, its size, and what it waits for.
    #[cfg(test)]
    pub(super) fn dependent(name: &str, objects: &[(u16, u64, u16)]) -> Self {
        let mut site = Self::handcrafted(name, &[]);
        for (number, (host, bytes, parent)) in (1..).zip(objects) {
            site.objects.push(Object { host: *host, bytes: *bytes });
            site.children.push(Vec::new());
            site.children[usize::from(*parent)].push(number);
        }
        site.with_document(0)
    }

    /// A recorded page. `None`: it is too large.
    fn recorded(page: &Page) -> Option<Self> {
        let bytes = |size: f64| (size as u64).saturating_sub(HEAD).max(LEAST);
        let objects: Vec<Object> =
            page.transfers.iter().map(|t| Object { host: t.host, bytes: bytes(t.size) }).collect();
        let total: u64 = objects.iter().map(|object| object.bytes).sum();
        let fits = page.hosts.len() <= PAGE_LIMITS.hosts
            && (2..=PAGE_LIMITS.objects).contains(&objects.len())
            && total <= PAGE_LIMITS.bytes;
        if !fits {
            return None;
        }
        let mut children: Vec<Vec<u16>> =
            (0..objects.len() as u16).map(|n| page.children(n).to_vec()).collect();
        // A browser cannot know of anything before it has the document.
        let early = page.roots.iter().copied().filter(|root| *root != 0);
        let mut first: Vec<u16> = early.chain(children[0].iter().copied()).collect();
        first.sort_unstable();
        children[0] = first;
        let name = page.name.split('+').next().unwrap_or_default().to_owned();
        let document = objects[0].bytes;
        Some(Self { name, objects, children, is_recorded: true }.with_document(document))
    }

    /// The document takes as many bytes as it needs, and at least so many.
    fn with_document(mut self, least: u64) -> Self {
        self.objects[0].bytes = least;
        self.objects[0].bytes = (self.text().len() as u64).max(least);
        self
    }

    /// The document.
    pub(super) fn html(&self) -> String {
        let mut text = self.text();
        let missing = (self.objects[0].bytes as usize).saturating_sub(text.len());
        text.extend(std::iter::repeat_n(' ', missing));
        text
    }

    /// Images of the document stand in it; the others are asked for when what they wait for is there. When
    /// all have come, the page tells the server how long that took, by the browser's own clock.
    fn text(&self) -> String {
        let list = |of: &dyn Fn(&Object) -> u64| {
            self.objects.iter().map(|object| of(object).to_string()).collect::<Vec<_>>().join(",")
        };
        let hosts = list(&|object| address(object.host).octets()[3].into());
        // The document says its own size nowhere.
        let sizes = list(&|object| object.bytes);
        let sizes = sizes.split_once(',').map_or("0".to_owned(), |(_, rest)| format!("0,{rest}"));
        let mut later = String::new();
        for (n, children) in self.children.iter().enumerate().skip(1).filter(|(_, c)| !c.is_empty()) {
            let children = children.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
            let _ = write!(later, "{n}:[{children}],");
        }
        let mut text = format!(
            "<!doctype html><meta charset=utf-8><title>{}</title><link rel=icon href=\"data:,\">\n\
             <script>var H=[{hosts}],S=[{sizes}],C={{{later}}};{SCRIPT}</script>\n",
            self.name
        );
        for n in &self.children[0] {
            let object = self.objects[usize::from(*n)];
            let _ = writeln!(
                text,
                "<img src=\"http://{}{}\" onload=d({n},this) onerror=x({n})>",
                address(object.host),
                object_path(*n, object.bytes)
            );
        }
        text
    }

    /// All bytes of its objects.
    pub(super) fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }

    /// The page as the simulator has it. An object waits there for the one that ended last before it began,
    /// so times are made up of which that is true.
    pub(super) fn page(&self) -> Result<Page> {
        let mut order = vec![(0_u16, 0.0)];
        let mut at = 0;
        while let Some((n, _)) = order.get(at).copied() {
            let ended = at as f64 + 1.0;
            order.extend(self.children[usize::from(n)].iter().map(|child| (*child, ended + 0.5)));
            at += 1;
        }
        let entries = order.iter().enumerate().map(|(at, (n, began))| {
            let object = self.objects[usize::from(*n)];
            Entry {
                started: Started { local: (began * 1e6) as i64, offset: 0 },
                time: (at as f64 + 1.0 - began) * 1000.0,
                url: format!("http://{}{}", address(object.host), object_path(*n, object.bytes)),
                content_length_exact: 0,
                content_length: None,
                body_size: None,
                transfer_size: Some((object.bytes + HEAD) as i64),
                content_size: None,
                headers_size: None,
                mime_type: None,
                wait: None,
            }
        });
        let har = Har { name: self.name.clone(), entries: entries.collect() };
        Page::new(&har, Reading::Modern).with_context(|| format!("the page {}", self.name))
    }
}

/// What every page does. `d`: an image is there; `x`: it is not, or is none; `e`: tells.
const SCRIPT: &str = "var L=S.length-1,B=0,K=[],T=0;performance.setResourceTimingBufferSize(2000);\
function d(n,i){if(i.naturalWidth!==1)B++;f(n)}function x(n){B++;f(n)}\
function f(n){(C[n]||[]).forEach(g);if(!--L)e()}\
function g(n){var i=new Image();K.push(i);i.onload=function(){d(n,i)};i.onerror=function(){x(n)};\
i.src='http://10.0.9.'+H[n]+'/o/'+S[n]+'/'+n}\
function e(){var r=performance.getEntriesByType('resource').filter(function(o){return o.name.indexOf('/o/')>0});\
if(r.length<S.length-1&&T++<80){setTimeout(e,25);return}\
var n=performance.getEntriesByType('navigation')[0],l=n.responseEnd,W=0;\
r.forEach(function(o){l=Math.max(l,o.responseEnd);var p=o.name.split('/');\
if(o.encodedBodySize!=p[p.length-2]&&(o.encodedBodySize||p[2]==location.host))W++});\
fetch('/done'+location.search,{method:'POST',body:JSON.stringify({ms:l-n.fetchStart,objects:r.length,bad:B,wrong:W})})}";

/// Pages as in the paper (§VII-B, §VII-D): 2 to 64 objects of 1 KB to 1 MB, and mixed ones (§VIII-A,
/// §VIII-B). Those of more than 4 MB are left out.
pub(super) fn handcrafted() -> Vec<Site> {
    const SIZES: [(&str, u64); 4] =
        [("1 KB", 1_000), ("10 KB", 10_000), ("100 KB", 100_000), ("1 MB", 1_000_000)];
    const MOST: u64 = 4_000_000;
    let mut sites = Vec::new();
    for (name, bytes) in SIZES {
        for count in [2, 4, 8, 16, 32, 64].into_iter().filter(|count| u64::from(*count) * bytes <= MOST) {
            sites.push(Site::handcrafted(&format!("{count} x {name}"), &[(count, bytes)]));
        }
    }
    sites.push(Site::handcrafted("mixed, figure 4", &[(16, 1_000), (8, 10_000), (4, 100_000)]));
    let figure_5 = [(32, 1_000), (16, 10_000), (2, 100_000), (2, 200_000)];
    sites.push(Site::handcrafted("mixed, figure 5", &figure_5));
    sites
}

/// Recorded pages: evenly from all that are not too large.
pub(super) fn recorded(file: &Path) -> Result<Vec<Site>> {
    let hars = pages::read(file)?;
    let mut sites = Vec::new();
    for har in hars.iter().filter(|har| !har.name.starts_with("syn-")) {
        let site = Site::recorded(&Page::new(har, Reading::Modern)?);
        // One for each name.
        sites.extend(site.filter(|site| sites.last().is_none_or(|last: &Site| last.name != site.name)));
    }
    let step = (sites.len() / RECORDED).max(1);
    Ok(sites.into_iter().step_by(step).take(RECORDED).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_simulator_has_the_same_objects_and_dependencies() {
        let objects = [(0, 1000, 0), (1, 2000, 0), (1, 3000, 1), (2, 4000, 3), (0, 5000, 1)];
        let page = Site::dependent("page", &objects).page().unwrap();
        let size = |n: u16| page.transfers[usize::from(n)].size as u64 - HEAD;
        let below = |n: u16| page.children(n).iter().map(|child| size(*child)).collect::<Vec<_>>();
        let of_size = |wanted: u64| (0..6).find(|n| size(*n) == wanted).unwrap();
        assert_eq!(page.roots, [0]);
        assert_eq!(below(0), [1000, 2000]);
        assert_eq!(below(of_size(1000)), [3000, 5000]);
        assert_eq!(below(of_size(3000)), [4000]);
        assert_eq!(page.hosts.len(), 3);
    }

    #[test]
    fn the_papers_pages_are_there_and_documents_have_their_size() {
        let sites = handcrafted();
        let of = |name: &str| sites.iter().find(|site| site.name == name).unwrap();
        assert_eq!(of("32 x 100 KB").objects.len(), 33);
        assert_eq!(of("mixed, figure 4").objects.len(), 29);
        assert!(sites.iter().all(|site| site.html().len() as u64 == site.objects[0].bytes));
    }

    #[test]
    fn twenty_recorded_pages_have_all_their_objects_known_by_others() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pageload/data/pages.jsonl.gz");
        let sites = recorded(&file).unwrap();
        assert_eq!(sites.len(), RECORDED);
        for site in &sites {
            let known: usize = site.children.iter().map(Vec::len).sum();
            assert_eq!(known + 1, site.objects.len(), "{}", site.name);
            assert_eq!(site.html().len() as u64, site.objects[0].bytes, "{}", site.name);
            assert_eq!(site.page().unwrap().transfers.len(), site.objects.len());
        }
        assert!(sites.iter().filter(|site| site.objects.iter().any(|o| o.host > 2)).count() > 5);
    }
}
