//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod by_answer;
mod gateway;
#[path = "support/http2.rs"]
mod http2;
mod http_ahead;
mod http_anew;
mod http_binding;
mod http_connections;
mod http_crumbs;
mod http_decided_anew;
mod http_first_part;
mod http_gibibyte;
mod http_late;
mod http_many;
mod http_moved;
mod http_networks;
mod http_parts;
mod http_real_server;
mod http_returns;
mod http_rules;
mod http_shared_networks;
mod http_tunnels;
mod http_turns;
mod http_windows;
mod intercept;
mod intercept_http2;
mod intercept_lost_network;
mod intercept_moving;
mod intercept_networks;
#[path = "support/multipath.rs"]
mod multipath;
#[path = "support/networks.rs"]
mod networks;
mod publishing;
mod publishing_http;
mod publishing_support;
#[path = "support/scripted.rs"]
mod scripted;
#[path = "support/secure.rs"]
mod secure;
mod session_rules;
mod session_words;
mod sessions;
mod sessions_ahead;
mod sessions_by_hand;
mod sessions_film;
mod sessions_http;
mod sessions_kept_by_hand;
mod sessions_support;
#[path = "support/shop.rs"]
mod shop;
mod socks;
mod support;
