//go:build linux

package proxycmd

import (
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
)

var program = &clitest.Program{Verbs: Verbs}

func TestMain(m *testing.M) { program.Main(m) }
