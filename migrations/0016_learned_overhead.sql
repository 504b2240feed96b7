ALTER TABLE `learned_bound` ADD `factor_at` integer;--> statement-breakpoint
ALTER TABLE `learned_bound` ADD `overhead_tokens` integer;--> statement-breakpoint
ALTER TABLE `learned_bound` ADD `overhead_at` integer;