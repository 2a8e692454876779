package rulercmd

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli/clitest"
)

// program knows the ruler alone: a test that has it run other verbs of weir is one
// of cmd/weir, or starts a whole weir.
var program = &clitest.Program{Verbs: func() []*cobra.Command { return Verbs() }}

func TestMain(m *testing.M) { program.Main(m) }
