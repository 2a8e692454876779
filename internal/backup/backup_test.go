package backup

import (
	"testing"

	"github.com/weirdb/weir/internal/backup/bulk"
)

// TestPartial: whatever leaves something of its scope out does not stand in for a whole
// backup.
func TestPartial(t *testing.T) {
	for name, o := range map[string]Options{
		"tables": {Filter: bulk.Filter{ExcludeTableData: []string{"x"}}}, "schema": {SchemaOnly: true}, "unlogged": {NoUnlogged: true},
		"large objects": {NoLargeObjects: true}, "databases": {Cluster: true, Databases: []string{"a"}}, "globals": {Cluster: true, NoGlobals: true},
	} {
		if !o.Partial() {
			t.Errorf("%s left out, and it is said to be whole", name)
		}
	}
	for name, o := range map[string]Options{"database": {NoGlobals: true}, "cluster": {Cluster: true}, "passwords": {Cluster: true, NoRolePasswords: true}} {
		if o.Partial() {
			t.Errorf("%s: it is whole", name)
		}
	}
}
