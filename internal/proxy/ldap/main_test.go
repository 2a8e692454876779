package ldap_test

import (
	"os"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
