// Package killtest kills the proxy and its servers to see what they lose. Clients
// write through a `weir proxy` of its own process, by every lane, while the proxy
// and the database server are killed, stopped for a while, and cut off from each
// other and from their clients. A ledger has what the clients were told; the tables,
// read past the proxy, must agree with it.
//
//	clients --> relay --> weir proxy --> relay --> server <-- what is there
//	   |          x           x            x          x            |
//	   +---------------- what was said ------> ledger <------------+
//
// A few kills are part of every `go test`; WEIR_KILLS=500 makes it 500 for each
// engine, WEIR_KILLS_SEED repeats the order of the faults.
package killtest_test

import (
	"os"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
)

// TestMain removes the program that the tests share.
func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
