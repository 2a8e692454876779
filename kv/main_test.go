package kv_test

import (
	"os"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
)

// TestMain removes the program that the tests share.
func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
