package postgres

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
)

const (
	// blobBatch is the number of large objects in one chunk. A restore creates those of a chunk
	// in one transaction, which locks each of them.
	blobBatch = 500

	// blobPiece is how many bytes of a large object one statement writes.
	blobPiece = 256 << 10
)

// blobJobs returns the jobs that read the large objects.
func (d *database) blobJobs(ctx context.Context) ([]bulk.Job, error) {
	if d.opts.NoLargeObjects || d.opts.Filter.Selective() {
		return nil, nil
	}
	// The main session is idle until workers need it, and none is running yet.
	var batches [][]string
	err := d.main.Query(ctx, "SELECT oid FROM pg_catalog.pg_largeobject_metadata ORDER BY oid", func(row []string) error {
		if n := len(batches); n == 0 || len(batches[n-1]) == blobBatch {
			batches = append(batches, nil)
		}
		batches[len(batches)-1] = append(batches[len(batches)-1], row[0])
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list large objects: %w", err)
	}
	var jobs []bulk.Job
	for i, oids := range batches {
		info := archive.ChunkInfo{
			Path: fmt.Sprintf("%s/blobs/%04d.sql", d.dir(), i+1),
			Kind: archive.KindBlobs, Database: d.name, Part: i + 1, Content: "sql",
		}
		jobs = append(jobs, bulk.Job{ID: info.Path, Do: func(ctx context.Context, n int) error {
			end := d.opts.Progress.Begin("large objects")
			defer end()
			return d.writeChunk(ctx, info, func(out io.Writer) error { return d.blobs(ctx, &d.workers[n], out, oids) })
		}})
	}
	d.opts.Progress.Expect(0, int64(len(jobs)))
	return jobs, nil
}

// blobs writes statements that create large objects: identity, content, owner, comment,
// privileges. No lock of another session prevents reading them.
func (d *database) blobs(ctx context.Context, w *worker, out io.Writer, oids []string) error {
	if err := w.open(ctx); err != nil {
		return err
	}
	list := strings.Join(oids, ",")
	for _, oid := range oids {
		if _, err := fmt.Fprintf(out, "SELECT pg_catalog.lo_create(%s);\n", oid); err != nil {
			return err
		}
	}
	var long []string
	err := w.s.Query(ctx, fmt.Sprintf(`SELECT oid, pg_catalog.encode(pg_catalog.lo_get(oid, 0, %d), 'hex')
FROM pg_catalog.pg_largeobject_metadata WHERE oid IN (%s) ORDER BY oid`, blobPiece, list), func(row []string) error {
		if len(row[1]) == 2*blobPiece {
			long = append(long, row[0])
		}
		return putBlob(out, row[0], 0, row[1])
	})
	if err != nil {
		return fmt.Errorf("read large objects: %w", err)
	}
	for _, oid := range long {
		for offset := int64(blobPiece); ; offset += blobPiece {
			row, err := w.s.Row(ctx, fmt.Sprintf("SELECT pg_catalog.encode(pg_catalog.lo_get(%s, %d, %d), 'hex')", oid, offset, blobPiece))
			if err != nil {
				return fmt.Errorf("read large object %s: %w", oid, err)
			}
			if err := putBlob(out, oid, offset, row[0]); err != nil {
				return err
			}
			if len(row[0]) < 2*blobPiece {
				break
			}
		}
	}
	return d.blobOwners(ctx, w, out, list)
}

func putBlob(out io.Writer, oid string, offset int64, hex string) error {
	if hex == "" {
		return nil
	}
	_, err := fmt.Fprintf(out, "SELECT pg_catalog.lo_put(%s, %d, '\\x%s');\n", oid, offset, hex)
	return err
}

// blobOwners writes the owners, privileges and security labels of large objects. Grants are in
// the order of the server's list, in which they were granted; each is granted by its original
// grantor.
func (d *database) blobOwners(ctx context.Context, w *worker, out io.Writer, list string) error {
	var b strings.Builder
	err := w.s.Query(ctx, `SELECT l.oid, pg_catalog.pg_get_userbyid(l.lomowner), coalesce(pg_catalog.obj_description(l.oid, 'pg_largeobject'), ''),
       l.lomacl IS NOT NULL FROM pg_catalog.pg_largeobject_metadata l WHERE l.oid IN (`+list+`) ORDER BY 1`, func(row []string) error {
		fmt.Fprintf(&b, "ALTER LARGE OBJECT %s OWNER TO %s;\n", row[0], pg.Ident(row[1]))
		if row[2] != "" {
			fmt.Fprintf(&b, "COMMENT ON LARGE OBJECT %s IS %s;\n", row[0], pg.Literal(row[2]))
		}
		if row[3] == "t" {
			fmt.Fprintf(&b, "REVOKE ALL ON LARGE OBJECT %s FROM %s;\n", row[0], pg.Ident(row[1]))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read owners of large objects: %w", err)
	}
	err = w.s.Query(ctx, `SELECT l.oid, CASE a.grantee WHEN 0 THEN '' ELSE pg_catalog.pg_get_userbyid(a.grantee) END, a.privilege_type, a.is_grantable,
       pg_catalog.pg_get_userbyid(a.grantor), a.grantor = l.lomowner
FROM pg_catalog.pg_largeobject_metadata l, pg_catalog.aclexplode(l.lomacl) WITH ORDINALITY AS a (grantor, grantee, privilege_type, is_grantable, n)
WHERE l.oid IN (`+list+`) ORDER BY l.oid, a.n`, func(row []string) error {
		grantee := "PUBLIC"
		if row[1] != "" {
			grantee = pg.Ident(row[1])
		}
		option := ""
		if row[3] == "t" {
			option = " WITH GRANT OPTION"
		}
		grant := fmt.Sprintf("GRANT %s ON LARGE OBJECT %s TO %s%s;\n", row[2], row[0], grantee, option)
		if row[5] != "t" {
			grant = "SET SESSION AUTHORIZATION " + pg.Ident(row[4]) + ";\n" + grant + "RESET SESSION AUTHORIZATION;\n"
		}
		b.WriteString(grant)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read rights to large objects: %w", err)
	}
	err = w.s.Query(ctx, `SELECT objoid, provider, label FROM pg_catalog.pg_seclabel
WHERE classoid = 'pg_catalog.pg_largeobject'::pg_catalog.regclass AND objoid IN (`+list+`) ORDER BY 1, 2`, func(row []string) error {
		fmt.Fprintf(&b, "SECURITY LABEL FOR %s ON LARGE OBJECT %s IS %s;\n", pg.Ident(row[1]), row[0], pg.Literal(row[2]))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read labels of large objects: %w", err)
	}
	_, err = io.WriteString(out, b.String())
	return err
}
