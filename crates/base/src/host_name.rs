//! Names as hosts: what a program that knows hosts only writes for an endpoint.
//!
//! `ssh.laptop.ada@example.org` is the host `ssh.laptop.ada.at.example.org.whimbrel`: the label `at` stands
//! for the `@`. A label of the name that is `at` itself, or any number of `x-` and `at`, has one more `x-`
//! before it: `at.ada@example.org` is `x-at.ada.at.example.org.whimbrel`. So each name has one host, and no
//! two have the same. What ends in `.whimbrel` is never looked up in DNS.

use crate::Name;

/// The last label of hosts that are names.
const TOP: &str = "whimbrel";
/// Stands for the `@`.
const AT: &str = "at";
/// Before a label that could be taken for it.
const ESCAPE: &str = "x-";
/// The longest name that DNS has, and its longest label (RFC 1035, §2.3.4).
const LONGEST: usize = 253;
const LONGEST_LABEL: usize = 63;

/// The host that stands for a name; `None` if the name is too long to be one.
///
/// ```
/// let name = "ssh.laptop.ada@example.org".parse()?;
/// let host = whimbrel_base::host_of_name(&name);
/// assert_eq!(host.as_deref(), Some("ssh.laptop.ada.at.example.org.whimbrel"));
/// assert_eq!(whimbrel_base::name_of_host("ssh.laptop.ada.at.example.org.whimbrel"), Some(name));
/// # Ok::<(), whimbrel_base::NameError>(())
/// ```
pub fn host_of_name(name: &Name) -> Option<String> {
    let (local, domain) = name.as_str().split_once('@')?;
    let escaped = |part: &str| part.split('.').map(escape).collect::<Vec<_>>().join(".");
    let host = format!("{}.{AT}.{}.{TOP}", escaped(local), escaped(domain));
    let fits = host.len() <= LONGEST && host.split('.').all(|label| label.len() <= LONGEST_LABEL);
    fits.then_some(host)
}

/// The name that a host stands for; `None` if it is no host of that kind.
pub fn name_of_host(host: &str) -> Option<Name> {
    let labels: Vec<&str> = host.strip_suffix(TOP)?.strip_suffix('.')?.split('.').collect();
    let at = labels.iter().position(|label| *label == AT)?;
    let plain = |labels: &[&str]| labels.iter().map(|label| unescape(label)).collect::<Vec<_>>().join(".");
    let name: Name = format!("{}@{}", plain(&labels[..at]), plain(&labels[at + 1..])).parse().ok()?;
    // Anything that is not exactly what stands for a name stands for none.
    Some(name).filter(|name| host_of_name(name).as_deref() == Some(host))
}

/// Whether a host is of this kind, be it right or wrong: DNS has nothing to do with it.
pub fn is_whimbrel_host(host: &str) -> bool {
    host == TOP || host.strip_suffix(TOP).is_some_and(|rest| rest.ends_with('.'))
}

fn could_be_at(label: &str) -> bool {
    let mut rest = label;
    while let Some(shorter) = rest.strip_prefix(ESCAPE) {
        rest = shorter;
    }
    rest == AT
}

fn escape(label: &str) -> String {
    if could_be_at(label) { format!("{ESCAPE}{label}") } else { label.to_owned() }
}

fn unescape(label: &str) -> &str {
    match label.strip_prefix(ESCAPE) {
        Some(rest) if could_be_at(rest) => rest,
        _ => label,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn host(name: &str) -> Option<String> {
        host_of_name(&name.parse().unwrap())
    }

    #[test]
    fn each_name_has_its_host() {
        for (name, expected) in [
            ("ada@example.org", "ada.at.example.org.whimbrel"),
            ("ssh.laptop.ada@example.org", "ssh.laptop.ada.at.example.org.whimbrel"),
            ("at@at", "x-at.at.x-at.whimbrel"),
            ("x-at.x-x-at.at@x-a.at.whimbrel", "x-x-at.x-x-x-at.x-at.at.x-a.x-at.whimbrel.whimbrel"),
        ] {
            assert_eq!(host(name).as_deref(), Some(expected));
            assert_eq!(name_of_host(expected).unwrap().as_str(), name);
        }
        assert_eq!(host(&format!("a@{}", "b.".repeat(125) + "b")), None, "too long");
        assert_eq!(host(&format!("{}at@b", "x-".repeat(30))), None, "too long a label");
    }

    #[test]
    fn other_hosts_stand_for_no_name() {
        for other in [
            "",
            "whimbrel",
            ".whimbrel",
            "example.org",
            "ada.example.org.whimbrel",
            "at.example.org.whimbrel",
            "ada.at.whimbrel",
            "ada.at.at.whimbrel",
            "ada.at.example.at.whimbrel",
            "a.b.c.d.at.example.org.whimbrel",
            "Ada.at.example.org.whimbrel",
            "ada.at.example.org.whimbrel.",
            "ada.at.example.org.nowhimbrel",
            "ada_.at.example.org.whimbrel",
        ] {
            assert_eq!(name_of_host(other), None, "{other}");
        }
        assert!(is_whimbrel_host("whimbrel") && is_whimbrel_host("x.whimbrel"));
        assert!(!is_whimbrel_host("xwhimbrel") && !is_whimbrel_host("whimbrel.org"));
    }

    proptest! {
        #[test]
        fn names_and_hosts_stand_for_each_other(
            local in "(x-){0,3}(at|a|ad-a|x)(\\.(x-){0,3}(at|b|x)){0,2}",
            domain in "(x-){0,3}(at|org|whimbrel)(\\.(x-){0,3}(at|c|whimbrel)){0,3}",
        ) {
            let name: Name = format!("{local}@{domain}").parse().unwrap();
            let host = host_of_name(&name).unwrap();
            prop_assert_eq!(name_of_host(&host), Some(name));
        }

        #[test]
        fn a_host_that_stands_for_a_name_is_its_only_one(
            host in "((x-)?(at|a|b)\\.){1,7}whimbrel|\\PC{0,30}\\.whimbrel",
        ) {
            if let Some(name) = name_of_host(&host) {
                prop_assert_eq!(host_of_name(&name), Some(host));
            }
        }
    }
}
