package archive

import (
	"fmt"
	"os"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
)

// TestMain is also the main function of a process that tests kill.
func TestMain(m *testing.M) {
	if dir := os.Getenv("WEIR_TEST_ARCHIVE_WRITER"); dir != "" {
		fmt.Fprintln(os.Stderr, writeForEver(dir))
		os.Exit(1)
	}
	os.Exit(labtest.Main(m))
}
