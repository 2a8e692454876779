package kv_test

import (
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
	kvcmd "github.com/weirdb/weir/internal/kvd/cmd"
)

// program is what replicas run. It has the verbs of weir kv alone, so that a change
// of another product is no reason to test this one again.
var program = &clitest.Program{Verbs: kvcmd.Verbs}

func TestMain(m *testing.M) { program.Main(m) }
