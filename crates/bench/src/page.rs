//! The page of all kept results: `docs/results.md`, made from the files in `bench/results`.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::output::number;
use crate::report::distinct;

const HEAD: &str = "\
# Results

What each bench found when it was run last, as `whimbrel-bench report` makes it from the files in `bench/results`
(`cargo test -p whimbrel-bench` says when this page is behind them). `scripts/measure.sh` runs the key benches, `make
bench` all of them; [measurements](measurements.md) says how they measure, and what each file holds. A figure is the
median over the rounds of one run, in which subject and peers take turns; a ratio is taken round by round.
";

/// One kept result.
struct Kept {
    file: String,
    json: Value,
}

impl Kept {
    fn text(&self, path: &[&str]) -> &str {
        path.iter().fold(&self.json, |value, key| &value[*key]).as_str().unwrap_or("")
    }

    /// A setting that may be a list.
    fn setting(&self, key: &str) -> String {
        match &self.json["settings"][key] {
            Value::String(text) => text.clone(),
            Value::Array(many) => many.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; "),
            _ => String::new(),
        }
    }

    /// What else the machine did before the bench began: of older results, only the load is known.
    fn busy(&self) -> String {
        let of = |key: &str| self.json["machine"][key].as_f64();
        let load = || of("load").map_or(String::new(), |load| format!("load {load:.1}"));
        of("busy").map_or_else(load, |busy| format!("{busy:.0} %"))
    }

    /// Whether it is of a bench: it was called by its name, or by none, and the result's name begins with
    /// that and no longer one.
    fn is_of(&self, bench: &Bench, all: &[Bench]) -> bool {
        if self.text(&["command"]).split(' ').nth(1) == Some(bench.name.as_str()) {
            return true;
        }
        let result = self.text(&["bench"]);
        let begins = |name: &str| {
            result.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let own = all.iter().filter(|bench| begins(&bench.name)).max_by_key(|bench| bench.name.len());
        own.is_some_and(|own| own.name == bench.name)
    }

    fn verdicts(&self) -> impl Iterator<Item = Verdict<'_>> {
        self.json["verdicts"].as_array().into_iter().flatten().map(Verdict)
    }
}

/// A target and what came of it, as it was kept.
struct Verdict<'a>(&'a Value);

impl Verdict<'_> {
    fn is_met(&self) -> bool {
        self.0["met"] == true
    }

    fn value(&self) -> f64 {
        self.0["value"].as_f64().unwrap_or(f64::NAN)
    }

    /// Sign and limit.
    fn bound(&self) -> (&'static str, f64) {
        let of = |key: &str| self.0["bound"][key].as_f64();
        of("at_least").map_or(("≤", of("at_most").unwrap_or(f64::NAN)), |limit| ("≥", limit))
    }

    /// What is asked, without the case.
    fn target(&self) -> String {
        let text = |key: &str| self.0[key].as_str().unwrap_or("");
        let against = match text("against") {
            "" => String::new(),
            peer => format!(" / {peer}"),
        };
        let judged = match text("judged") {
            "median" | "" => String::new(),
            other => format!(", {other}"),
        };
        format!("{}{against}: {}{judged}", text("of"), text("metric"))
    }

    fn case(&self) -> &str {
        self.0["in"].as_str().unwrap_or("")
    }
}

/// A command that measures.
#[derive(Debug, Clone)]
pub(crate) struct Bench {
    pub(crate) name: String,
    pub(crate) about: String,
}

/// The page for all results in a folder, of these benches.
pub(crate) fn page(folder: &Path, all: &[Bench]) -> Result<String> {
    let kept = read(folder)?;
    let mut page = HEAD.to_owned();
    machines(&mut page, &kept)?;
    benches(&mut page, &kept)?;
    not_kept(&mut page, &kept, all)?;
    targets(&mut page, &kept)?;
    misses(&mut page, &kept)?;
    Ok(page)
}

/// Results by name.
fn read(folder: &Path) -> Result<Vec<Kept>> {
    let shown = folder.display();
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {shown}"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    let read = |path: &std::path::PathBuf| -> Result<Kept> {
        let text = fs::read_to_string(path)?;
        let json = serde_json::from_str(&text).with_context(|| format!("malformed: {}", path.display()))?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Kept { file, json })
    };
    files.iter().map(read).collect()
}

fn machines(page: &mut String, kept: &[Kept]) -> Result<()> {
    // With the kernel's version, and which build of it that is.
    let describe = |kept: &Kept| {
        let cores = kept.json["machine"]["cores"].as_u64().unwrap_or(0);
        let [cpu, kernel] = ["cpu", "kernel"].map(|key| kept.text(&["machine", key]));
        let (version, build) = kernel.split_once('-').unwrap_or((kernel, ""));
        (format!("{cpu}, {cores} cores, Linux {version}"), build.to_owned())
    };
    let all: Vec<(String, String)> = kept.iter().map(describe).collect();
    for machine in distinct(all.iter().map(|(machine, _)| machine.as_str())) {
        let builds = all.iter().filter(|(of, _)| of == machine).map(|(_, build)| build.as_str());
        let builds = distinct(builds.filter(|build| !build.is_empty())).join(", ");
        let builds = if builds.is_empty() { builds } else { format!(" ({builds})") };
        writeln!(page, "\nMachine: {machine}{builds}.")?;
    }
    Ok(())
}

fn benches(page: &mut String, kept: &[Kept]) -> Result<()> {
    page.push_str(
        "\n## Benches\n\n\
         | bench | what | command | result | carrier | congestion control | commit | day | busy before | targets met |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | ---: | ---: |\n",
    );
    for one in kept {
        let (met, all) = one.verdicts().fold((0, 0), |(met, all), v| (met + u32::from(v.is_met()), all + 1));
        let congestion = match one.setting("congestion_control") {
            none if none.is_empty() => one.text(&["machine", "congestion_control"]).to_owned(),
            given => given,
        };
        writeln!(
            page,
            "| {} | {} | `{}` | [{file}](../bench/results/{file}) | {} | {congestion} | {} | {} | {} | {} |",
            one.text(&["bench"]),
            cell(one.text(&["title"])),
            one.text(&["command"]),
            cell(&one.setting("carrier")),
            match one.text(&["commit"]) {
                "" => "not recorded",
                commit => commit,
            },
            one.text(&["date"]).get(..10).unwrap_or_default(),
            one.busy(),
            if all == 0 { "none set".to_owned() } else { format!("{met} of {all}") },
            file = one.file,
        )?;
    }
    Ok(())
}

/// The benches of which no result is kept.
fn not_kept(page: &mut String, kept: &[Kept], all: &[Bench]) -> Result<()> {
    let missing: Vec<&Bench> =
        all.iter().filter(|bench| !kept.iter().any(|one| one.is_of(bench, all))).collect();
    if missing.is_empty() {
        return Ok(());
    }
    page.push_str("\nNo result is kept of:\n\n| bench | what | command |\n| --- | --- | --- |\n");
    for Bench { name, about } in missing {
        writeln!(page, "| {name} | {} | `whimbrel-bench {name}` |", cell(about))?;
    }
    Ok(())
}

fn targets(page: &mut String, kept: &[Kept]) -> Result<()> {
    page.push_str(
        "\n## Targets\n\nOf several cases, the worst figure.\n\n\
         | bench | target | must | aim | figure | met in |\n| --- | --- | --- | ---: | ---: | --- |\n",
    );
    for one in kept {
        let key = |verdict: &Verdict<'_>| {
            let (sign, limit) = verdict.bound();
            format!("{} | {sign} {}", cell(&verdict.target()), number(limit))
        };
        let keys: Vec<String> = one.verdicts().map(|verdict| key(&verdict)).collect();
        for target in distinct(keys.iter().map(String::as_str)) {
            let own: Vec<Verdict<'_>> = one.verdicts().filter(|verdict| key(verdict) == target).collect();
            let Some(first) = own.first() else { continue };
            let values = own.iter().map(Verdict::value);
            let worst = if first.bound().0 == "≥" {
                values.fold(f64::INFINITY, f64::min)
            } else {
                values.fold(f64::NEG_INFINITY, f64::max)
            };
            let met = own.iter().filter(|verdict| verdict.is_met()).count();
            let aim = first.0["aim"].as_f64().unwrap_or(f64::NAN);
            let (bench, all) = (one.text(&["bench"]), own.len());
            writeln!(
                page,
                "| {bench} | {target} | {} | {} | {met} of {all}{} |",
                number(aim),
                number(worst),
                if met == all { "" } else { ", **missed**" }
            )?;
        }
    }
    Ok(())
}

fn misses(page: &mut String, kept: &[Kept]) -> Result<()> {
    page.push_str("\n## Misses\n\n");
    let mut count = 0;
    for one in kept {
        for verdict in one.verdicts().filter(|verdict| !verdict.is_met()) {
            let (sign, limit) = verdict.bound();
            let case = Some(verdict.case()).filter(|case| !case.is_empty());
            let case = case.map_or(String::new(), |case| format!(" ({case})"));
            let (bench, target) = (one.text(&["bench"]), verdict.target());
            let (found, limit) = (number(verdict.value()), number(limit));
            writeln!(page, "- {bench}{case}: {target} is {found}, must be {sign} {limit}")?;
            count += 1;
        }
    }
    if count == 0 {
        page.push_str("None.\n");
    }
    Ok(())
}

/// Text that a table can hold.
fn cell(text: &str) -> String {
    text.replace('|', "/")
}

#[cfg(test)]
mod told;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_is_kept() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let made = page(&root.join("bench/results"), &crate::cli::listed::benches()).unwrap();
        let kept = fs::read_to_string(root.join("docs/results.md")).unwrap();
        assert!(
            made == kept,
            "docs/results.md is behind: run `whimbrel-bench report --page docs/results.md`"
        );
    }

    #[test]
    fn a_miss_is_told_with_its_case_and_what_it_should_be() {
        let folder = std::env::temp_dir().join(format!("whimbrel-page-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let verdict = |case: &str, value: f64, met: bool| {
            serde_json::json!({
                "case": "", "of": "whimbrel", "metric": "rate", "against": "tls", "judged": "median",
                "bound": {"at_least": 0.95}, "aim": 1.0, "in": case, "value": value, "met": met,
            })
        };
        let json = serde_json::json!({
            "bench": "throughput", "title": "t", "command": "whimbrel-bench throughput", "commit": "c",
            "verdicts": [verdict("one way", 1.2, true), verdict("both ways", 0.5, false)],
        });
        fs::write(folder.join("throughput.json"), json.to_string()).unwrap();
        let page = page(&folder, &[]).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(
            page.contains("- throughput (both ways): whimbrel / tls: rate is 0.50, must be ≥ 0.95\n"),
            "{page}"
        );
        assert!(page.contains("| 0.50 | 1 of 2, **missed** |"), "{page}");
    }

    fn kept(name: &str, command: &str, kernel: &str) -> Kept {
        let machine = serde_json::json!({ "cpu": "C", "cores": 2, "kernel": kernel, "load": 1.5 });
        let json = serde_json::json!({ "bench": name, "command": command, "machine": machine });
        Kept { file: format!("{name}.json"), json }
    }

    #[test]
    fn benches_without_a_result_are_named() {
        let bench = |name: &str| Bench { name: name.to_owned(), about: format!("what {name} asks") };
        let all = ["relay", "relay-idle", "handover", "messages"].map(bench);
        let kept = [
            kept("relay-idle", "whimbrel-bench", "1"),
            kept("handover-goodput", "whimbrel-bench", "1"),
            kept("message-ping", "whimbrel-bench messages --rounds 5", "1"),
        ];
        let mut page = String::new();
        not_kept(&mut page, &kept, &all).unwrap();
        assert!(page.ends_with("| --- |\n| relay | what relay asks | `whimbrel-bench relay` |\n"), "{page}");
        let mut page = String::new();
        not_kept(&mut page, &kept, &all[1..]).unwrap();
        assert_eq!(page, "");
    }

    #[test]
    fn a_machine_is_named_once_with_the_builds_of_its_kernel() {
        let kept = [kept("a", "", "6.18.44-x1"), kept("b", "", "6.18.44-x2"), kept("c", "", "6.19")];
        let mut page = String::new();
        machines(&mut page, &kept).unwrap();
        assert_eq!(
            page,
            "\nMachine: C, 2 cores, Linux 6.18.44 (x1, x2).\n\nMachine: C, 2 cores, Linux 6.19.\n"
        );
    }

    #[test]
    fn what_disturbed_a_bench_is_told() {
        let mut one = kept("a", "", "1");
        assert_eq!(one.busy(), "load 1.5");
        one.json["machine"]["busy"] = 3.4.into();
        assert_eq!(one.busy(), "3 %");
        one.json["machine"] = Value::Null;
        assert_eq!(one.busy(), "");
    }
}
