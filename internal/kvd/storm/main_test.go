// Package storm tests replicas under faults of every kind at once, as processes,
// through the Go client of package kv: kills, hung disks, clocks that jump, unequal
// settings, mixed versions and changes of members. Every history is checked.
package storm_test

import (
	"os"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
)

// TestMain removes the program that the tests share. The storm runs this program
// as its replicas.
func TestMain(m *testing.M) {
	if os.Getenv(asReplica) != "" {
		runStormReplica()
	}
	os.Exit(labtest.Main(m))
}
