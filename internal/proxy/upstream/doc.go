// Package upstream finds, among the hosts of a database, the one that new
// connections go to. It observes and never elects: a host is the primary because it
// says so, or because Patroni does. It speaks no database protocol; the two sides of
// the proxy bring a Probe each.
package upstream
