//! `whimbrel proxy pac`: a file that tells browsers which proxy to use.

use std::net::SocketAddr;

use anyhow::Result;
use clap::Args;

use crate::options::after;
use crate::output;

/// Print a PAC file, which tells a browser what to send to the proxies
///
/// Names as hosts (….whimbrel) go to the HTTP proxy alone, which sees where a request comes from: no other
/// site's page may use this user's key.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel proxy pac
  whimbrel proxy pac --only-names"))]
pub(super) struct Pac {
    /// The HTTP proxy
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8118")]
    http: SocketAddr,
    /// Send all but names as hosts to this SOCKS proxy
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "only_names")]
    socks: Option<SocketAddr>,
    /// Send names as hosts to the proxy, and nothing else
    #[arg(long)]
    only_names: bool,
}

pub(super) fn run(args: &Pac) -> Result<()> {
    output::line(file(args))
}

fn file(args: &Pac) -> String {
    let rest = match (args.only_names, args.socks) {
        (true, _) => "DIRECT".to_owned(),
        // Names of hosts are the proxy's to look up, which `SOCKS` does not say.
        (false, Some(socks)) => format!("SOCKS5 {socks}"),
        (false, None) => format!("PROXY {}", args.http),
    };
    // Written without the functions that browsers offer to such files: these differ in what is a plain name.
    format!(
        "\
function FindProxyForURL(url, host) {{
  // A final dot says that a name is whole.
  host = host.toLowerCase().replace(/\\.+$/, \"\");
  if (/(^|\\.)whimbrel$/.test(host)) return \"PROXY {http}\";
  // This machine, and names that its own network knows.
  if (/^[^.:]*$/.test(host) || /\\.localhost$/.test(host)) return \"DIRECT\";
  if (/^127(\\.[0-9]{{1,3}}){{3}}$/.test(host) || /^\\[?::1\\]?$/.test(host)) return \"DIRECT\";
  return \"{rest}\";
}}",
        http = args.http
    )
}
