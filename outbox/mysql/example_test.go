package mysql_test

import (
	"context"
	"fmt"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/mysql"
)

// A history by day: delivered messages stay, and old days are dropped whole.
func ExampleStore_Migrate() {
	migrate := func(ctx context.Context) error {
		store, err := mysql.Open(ctx, "mysql://relay@db.example.com/shop", mysql.Options{})
		if err != nil {
			return fmt.Errorf("open the outbox: %w", err)
		}
		defer store.Close()
		done, err := store.Migrate(ctx, outbox.Plan{
			Layout:    outbox.History,
			Partition: outbox.PartitionSpec{Period: outbox.Daily},
		})
		for _, statement := range done {
			fmt.Println(statement)
		}
		return err
	}
	_ = migrate
}
