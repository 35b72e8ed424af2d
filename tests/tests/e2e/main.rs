//! End-to-end tests: pierhead as a process between real registries and real clients. Each test has
//! its own daemons, ports and folders, so that all tests may run in parallel. A test without its
//! tools is skipped; with `CI=true` it fails. When an upstream must misbehave, the fake registry of
//! the testkit replaces the real one.

#![forbid(unsafe_code)]

mod auth;
mod bundle_failures;
mod bundles;
mod certificates;
mod client_errors;
mod clients_without_pierhead;
mod concurrent_clients;
mod configuration;
mod conformance;
mod corpus_images;
mod crash_during_fill;
mod disk_damage;
mod disk_errors;
mod docker_hub;
mod doctor;
mod eviction;
mod fault_matrix;
mod interface;
mod invalid_requests;
mod many_connections;
mod name_server;
mod operations;
mod pod;
mod pull;
mod random_images;
mod random_kills;
mod requests;
mod secrets;
mod setup;
mod small_cgroup;
mod smoke;
mod startup_errors;
mod tier;
mod tls;
mod unpacked_trees;
mod unread_responses;
mod upstream_outage;
mod wrong_bytes;
