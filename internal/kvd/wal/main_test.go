package wal_test

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain lets garbage gather: disks in memory are small and many.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}
