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
// engine, WEIR_KILLS_SEED repeats the order of the faults, WEIR_KILLS_TABLE
// names a file for the table of results.
package killtest_test

import (
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab/labtest"
	proxycmd "github.com/weirdb/weir/internal/proxy/cmd"
)

// program has the verbs of the proxy alone, so that a change of another product is no
// reason to kill this one again.
var program = &clitest.Program{Verbs: proxycmd.Verbs}

func TestMain(m *testing.M) {
	labtest.InMemory()
	program.Main(m)
}
