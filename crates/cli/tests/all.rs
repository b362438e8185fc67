//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod access;
mod access_killed;
mod agent;
#[path = "common/agents.rs"]
mod agents;
mod appointments;
mod basics;
#[path = "common/browser.rs"]
mod browser;
mod browser_pictures;
mod browsers;
mod carriers;
#[path = "common/certificates.rs"]
mod certificates;
mod chat;
mod common;
mod demo;
mod demo_devices;
mod devices;
mod devices_screen;
mod doctor;
mod domains;
#[path = "common/download.rs"]
mod download;
mod examples;
mod friends_devices;
mod guide;
#[path = "common/homes.rs"]
mod homes;
mod hostile_senders;
mod in_step;
mod interop_old;
mod lab_by_answer;
mod lab_gateway;
mod lab_lan;
mod lab_moving;
mod lab_pinhole;
mod lab_proxy;
mod lab_proxy_group;
mod lab_publishing;
mod lab_reach;
mod lab_reach_ssh;
mod lab_real_clients;
mod lab_relay_take_over;
mod lab_steering;
mod lab_story;
mod limits;
#[path = "common/lines.rs"]
mod lines;
#[path = "common/machines.rs"]
mod machines;
mod mail;
mod mailbox;
mod many_sockets;
mod meetings;
mod monitor;
mod moving;
mod moving_chat;
mod moving_film;
mod moving_forward;
mod moving_push;
mod moving_receive;
mod moving_remains;
mod moving_send;
mod moving_together;
mod moving_web;
mod names;
mod packaging;
#[path = "common/page.rs"]
mod page;
mod paths;
mod personal_names;
mod proxies;
mod proxies_packages;
mod proxy_http;
mod publishing;
mod relay_domains;
mod renewal;
mod requests;
#[path = "common/running.rs"]
mod running;
mod service_manager;
mod session_lines;
mod sessions;
mod setup;
#[path = "common/shell.rs"]
mod shell;
mod ssh;
#[path = "common/stage.rs"]
mod stage;
mod stolen_devices;
#[path = "common/story.rs"]
mod story;
mod takeover;
mod takeover_relay;
mod tickets;
#[path = "common/tinyproxy.rs"]
mod tinyproxy;
mod transfers;
mod trust;
mod tunnels;
#[path = "common/typed.rs"]
mod typed;
#[path = "common/waiting.rs"]
mod waiting;
