//! /metrics, health and the page.
